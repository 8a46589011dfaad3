/* The ids of requests, which are appended to error texts. */
#ifndef PYTRITON_NAMES_H
#define PYTRITON_NAMES_H

#include "proxy/proxy.h"

/* The batch number and index under which a worker received a request. `batch` 0: no worker received it. */
typedef struct {
    uint64_t taken_ns; /* when tritonserver passed it to the backend */
    uint64_t batch;
    uint32_t place;
} Sent;

/* Returns the id of a request from its client, headers or trace, for free(); NULL if it has none. */
char *given_name(const Proxy *proxy, TRITONBACKEND_Request *request);
/* Returns the given id, or the one that the worker derives from batch and index, or "". For free(). */
char *name_of(const char *given, const Sent *sent);
/* Returns an error text that ends with the request's id, for free(). `given` may be NULL. */
char *text_with_name(const char *text, const char *given, const Sent *sent);

#endif
