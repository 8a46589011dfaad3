/* Conversion of the worker's answers to Triton's responses. */
#ifndef PYTRITON_BACKEND_TRANSLATION_RESPONSES_H
#define PYTRITON_BACKEND_TRANSLATION_RESPONSES_H

#include "proxy/proxy.h"
#include "translation/request_id.h"
#include "translation/outputs.h"
#include "wire/msgpack.h"

/* The receiver of responses: a request, or its remaining data after its release. */
typedef struct {
    TRITONBACKEND_Request *request; /* NULL after its release; then the other fields are used */
    TRITONBACKEND_ResponseFactory *factory;
    char *name; /* with a factory: the id given to the request, or NULL */
    RequestPosition sent;
    char **requested; /* the outputs that the client requested; empty: all */
    uint32_t requested_count;
    bool is_call; /* another model is the client: it still wants answers that come after a cancellation */
    bool last; /* the last request of its batch */
    PartialResponse *partial; /* state of outputs read from the worker's own memory, or NULL */
} Receiver;

/* The outcome of sending a response. */
typedef struct {
    bool failed;     /* it was an error */
    bool final;      /* it was the last response */
    bool nothing_sent;     /* nothing was sent: if it is the last response, tritonserver must still be notified */
    bool reschedule; /* there is no response: tritonserver must queue the request again */
} Outcome;

/* Read one response and send it; a single response to a request is its last. Returns false if the worker broke the
 * protocol (see `lane->fault`; this was sent as the last response if `outcome->final`, otherwise nothing was sent) or
 * was lost (`lane->worker_lost`; nothing was sent).
 */
bool response_forward(Proxy *proxy, const Receiver *to, Reader *answer, Outcome *outcome);
/* Returns whether the client of a request has disconnected. */
bool response_client_is_gone(TRITONBACKEND_ResponseFactory *factory);
/* Send an error as the last response. With `names`, append the request's id to its text. */
void response_send_error(
    const Proxy *proxy, const Receiver *to, TRITONSERVER_Error_Code code, const char *text, bool names);

#endif
