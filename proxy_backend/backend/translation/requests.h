/* Converts tritonserver's requests to messages of a lane. */
#ifndef PYTRITON_BACKEND_TRANSLATION_REQUESTS_H
#define PYTRITON_BACKEND_TRANSLATION_REQUESTS_H

#include "proxy/proxy.h"

/* Write a batch to `proxy->message`, and its inputs to the lane's arena. Returns NULL or an error, for free(). With
 * `is_isolated`, the worker must not merge the requests with other batches. `received_ns` is when tritonserver passed
 * the batch to the backend. Sets `circular` if the worker is waiting for this very batch; `proxy->avoid` then lists
 * all workers that are.
 */
char *batch_encode(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool is_isolated,
    uint64_t received_ns, bool *circular);
/* Returns how many of an input's `size` bytes are its elements: all, except for the string correlation id of a
 * sequence.
 */
uint64_t input_element_bytes(TRITONBACKEND_Request *request, TRITONBACKEND_Input *input, const int64_t *shape,
    uint32_t dims, int datatype, uint64_t size);

/* Returns the trace context of a request, or "" if it is not traced. */
const char *request_trace_context(TRITONBACKEND_Request *request);

/* Returns the number of rows of a request, which is 1 without a batch axis. */
uint64_t request_rows(const Model *model, TRITONBACKEND_Request *request);

#endif
