/* The ids of requests, with which errors end. */
#ifndef PYTRITON_NAMES_H
#define PYTRITON_NAMES_H

#include "proxy/proxy.h"

/* The batch and place under which a worker got a request. `batch` 0: no worker has got it. */
typedef struct {
    uint64_t taken_ns; /* when tritonserver handed it over */
    uint64_t batch;
    uint32_t place;
} Sent;

/* The id of a request by its client, its headers or its trace, for free(); NULL: they give none. */
char *given_name(const Proxy *proxy, TRITONBACKEND_Request *request);
/* The id that was given, else the one that the worker makes of batch and place; "": there is none. For free(). */
char *name_of(const char *given, const Sent *sent);
/* An error's text that ends with the request's id, for free(). `given` may be NULL. */
char *text_with_name(const char *text, const char *given, const Sent *sent);

#endif
