/* Conversion of tritonserver's requests to the lane's format. */
#ifndef PYTRITON_BACKEND_TRANSLATION_REQUESTS_H
#define PYTRITON_BACKEND_TRANSLATION_REQUESTS_H

#include "proxy/proxy.h"

/* Write a batch to `proxy->message` and its inputs to the lane's arena. Returns NULL, or the error. `is_isolated`: the
 * worker must not merge it with other batches. `received_ns`: when tritonserver passed it to the backend. `circular`:
 * the worker waits for this very batch; `proxy->avoid` lists the workers that do.
 */
char *batch_encode(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool is_isolated,
    uint64_t received_ns, bool *circular);
/* Returns how many of an input's `size` bytes hold elements: all, except for a sequence's string correlation id. */
uint64_t input_element_bytes(TRITONBACKEND_Request *request, TRITONBACKEND_Input *input, const int64_t *shape,
    uint32_t dims, int datatype, uint64_t size);

/* Returns the trace context of a request, or "" if it is not traced. */
const char *request_trace_context(TRITONBACKEND_Request *request);

/* Returns the number of rows of a request; 1 without a batch axis. */
uint64_t request_rows(const Model *model, TRITONBACKEND_Request *request);

#endif
