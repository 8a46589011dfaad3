/* Ids of requests, which are appended to error texts. */
#ifndef PYTRITON_BACKEND_TRANSLATION_REQUEST_ID_H
#define PYTRITON_BACKEND_TRANSLATION_REQUEST_ID_H

#include "proxy/proxy.h"

/* The batch and the index under which a worker received a request. `batch` is 0 if no worker received it. */
typedef struct {
    uint64_t received_ns; /* when tritonserver passed it to the backend */
    uint64_t batch;
    uint32_t place;
} RequestPosition;

/* Returns the id that the client gave a request in its id, headers or trace, for free(), or NULL if there is none. */
char *request_given_id(const Proxy *proxy, TRITONBACKEND_Request *request);
/* Returns `given`, or if it is NULL, the id that the worker derives from batch and index. "" if there is neither. For
 * free().
 */
char *request_id(const char *given, const RequestPosition *sent);
/* Returns an error text with the request's id appended, for free(). `given` may be NULL. */
char *text_with_request_id(const char *text, const char *given, const RequestPosition *sent);

#endif
