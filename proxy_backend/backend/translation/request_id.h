/* The ids of requests, which are appended to error texts. */
#ifndef PYTRITON_BACKEND_TRANSLATION_REQUEST_ID_H
#define PYTRITON_BACKEND_TRANSLATION_REQUEST_ID_H

#include "proxy/proxy.h"

/* The batch number and index under which a worker received a request. `batch` 0: no worker received it. */
typedef struct {
    uint64_t received_ns; /* when tritonserver passed it to the backend */
    uint64_t batch;
    uint32_t place;
} RequestPosition;

/* Returns the id of a request from its client, headers or trace, for free(); NULL if it has none. */
char *request_given_id(const Proxy *proxy, TRITONBACKEND_Request *request);
/* Returns the given id, or the one that the worker derives from batch and index, or "". For free(). */
char *request_id(const char *given, const RequestPosition *sent);
/* Returns an error text that ends with the request's id, for free(). `given` may be NULL. */
char *text_with_request_id(const char *text, const char *given, const RequestPosition *sent);

#endif
