/* Converts a worker's answers to responses of Triton. */
#ifndef PYTRITON_BACKEND_TRANSLATION_RESPONSES_H
#define PYTRITON_BACKEND_TRANSLATION_RESPONSES_H

#include "proxy/proxy.h"
#include "translation/request_id.h"
#include "translation/outputs.h"
#include "wire/msgpack.h"

/* The receiver of responses: a request, or after its release, what is left to answer it with. */
typedef struct {
    TRITONBACKEND_Request *request; /* NULL after its release; the other fields are used then */
    TRITONBACKEND_ResponseFactory *factory;
    char *name; /* with a factory: the id that the client gave, or NULL */
    RequestPosition sent;
    char **requested; /* names of the outputs that the client requested; empty for all */
    uint32_t requested_count;
    bool is_call; /* the client is another model, which still wants the answers after a cancellation */
    bool last; /* it is the last request of its batch */
    PartialResponse *partial; /* state of outputs that are read from the worker's own memory, or NULL */
} Receiver;

/* The outcome of sending a response. */
typedef struct {
    bool failed;     /* the response was an error */
    bool final;      /* it was the last response */
    bool nothing_sent;     /* nothing was sent; if it is the last response, tritonserver must still be notified */
    bool reschedule; /* there is no response, because the model asks tritonserver to queue the request again */
} Outcome;

/* Read one response and send it. The only response to a request is its last. Returns false if the worker was lost
 * (`lane->worker_lost`), when nothing was sent, or violated the protocol (`lane->fault`). In the latter case, the
 * fault was sent as the last response if `outcome->final`, and otherwise nothing was sent.
 */
bool response_forward(Proxy *proxy, const Receiver *to, Reader *answer, Outcome *outcome);
/* Send a response whose only output is one string. It is not the last response. */
void response_send_text(Proxy *proxy, const Receiver *to, char *output, Slice text, Outcome *outcome);
/* Returns whether the client of a request has disconnected. */
bool response_client_is_gone(TRITONBACKEND_ResponseFactory *factory);
/* Send an error as the last response. With `names`, the id of the request is appended to it. */
void response_send_error(
    const Proxy *proxy, const Receiver *to, TRITONSERVER_Error_Code code, const char *text, bool names);

#endif
