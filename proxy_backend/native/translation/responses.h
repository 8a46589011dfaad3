/* The worker's answers in Triton's form. */
#ifndef PYTRITON_RESPONSES_H
#define PYTRITON_RESPONSES_H

#include "proxy/proxy.h"
#include "translation/names.h"
#include "translation/outputs.h"
#include "wire/msgpack.h"

/* The receiver of responses: a request, or what is left of it after its release. */
typedef struct {
    TRITONBACKEND_Request *request; /* NULL: it has been released, and the other fields serve */
    TRITONBACKEND_ResponseFactory *factory;
    char *name; /* with a factory: the id that was given to the request; NULL: none was */
    Sent sent;
    char **requested; /* the outputs that the client wants; none: all */
    uint32_t requested_count;
    bool is_call; /* another model asks: what comes after it has asked for the end is still for it */
    bool last; /* of its batch */
    Unfinished *unfinished; /* where outputs are read from the worker's own memory; else NULL */
} Receiver;

/* The outcome of sending a response. */
typedef struct {
    bool failed;     /* it was an error */
    bool final;      /* no more may be sent */
    bool silent;     /* nothing was sent: if it is the last response, tritonserver is still to be told so */
    bool reschedule; /* there is no response: tritonserver shall queue the request again */
} Outcome;

/* Read one response and send it; one to a request is its last. False: the worker broke the protocol, `lane->fault` says
 * how; that has been sent as the last response if `outcome->final` says so, else nothing was. Or it was lost (`lane->lost`),
 * and nothing was sent. */
bool pass_response(Proxy *proxy, const Receiver *to, Reader *answer, Outcome *outcome);
/* Returns whether the client of a request has gone. */
bool is_gone(TRITONBACKEND_ResponseFactory *factory);
/* Send an error as the last response. With `names`, its text ends with the request's id. */
void send_error(const Proxy *proxy, const Receiver *to, TRITONSERVER_Error_Code code, const char *text, bool names);

#endif
