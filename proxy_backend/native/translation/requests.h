/* Requests of tritonserver in the lane's form. */
#ifndef PYTRITON_REQUESTS_H
#define PYTRITON_REQUESTS_H

#include "proxy/proxy.h"

/* Put a batch into `proxy->message`, its inputs into the lane's arena. Returns NULL, or what went wrong.
 * `alone`: the worker shall not merge it with others. `taken_ns`: when tritonserver handed it over. `circular`: the worker
 * waits for this very batch; `proxy->avoid` has who does. */
char *put_batch(
    Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool alone, uint64_t taken_ns, bool *circular);
/* How many of an input's `size` bytes hold its elements: all, but for a sequence's correlation id as a string. */
uint64_t counted_bytes(TRITONBACKEND_Request *request, TRITONBACKEND_Input *input, const int64_t *shape, uint32_t dims,
    int datatype, uint64_t size);

/* The context in which a request is traced, "" where it is not. */
const char *trace_of(TRITONBACKEND_Request *request);

/* The number of rows of a request; 1 without a batch axis. */
uint64_t rows_of(const Model *model, TRITONBACKEND_Request *request);

#endif
