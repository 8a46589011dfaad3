/* Copies the outputs of a response from the worker's memory to tritonserver's. */
#ifndef PYTRITON_BACKEND_TRANSLATION_OUTPUTS_H
#define PYTRITON_BACKEND_TRANSLATION_OUTPUTS_H

#include "lane/lane.h"
#include "triton/api.h"
#include "wire/msgpack.h"

enum { MAX_DIMS = 64 };

/* A tensor that the worker sent, validated. */
typedef struct {
    char *name;
    int datatype;
    int64_t shape[MAX_DIMS];
    uint32_t dims;
    int64_t size;
    uint64_t elements;
    const uint8_t *bytes; /* NULL if it is in the worker's own memory; the worker may change the bytes during reads */
    int64_t address;
} Tensor;

/* Read the description of an output. Returns false with the reason in `lane->fault`. The caller frees the tensor's
 * name. With `may_lend`, the output may be in the worker's own memory.
 */
bool output_read(Lane *lane, Reader *reader, bool may_lend, Tensor *tensor);
/* Describe an invalid output in `lane->fault`. `name` may be NULL. Returns false. */
bool output_fault(Lane *lane, const char *name, const char *what);

/* A response that is being filled from the worker's own memory. If the worker ends before that is complete, the next
 * worker's answer is written to the same buffers, because tritonserver provides only one buffer per output.
 */
typedef struct {
    TRITONBACKEND_Response *response;
    struct OutputBuffer *buffers;
} PartialResponse;
/* Returns NULL without memory. */
PartialResponse *partial_response_new(void);
void partial_response_free(PartialResponse *partial);

/* Pass an output to tritonserver, for a response of `total` bytes. Sets `error` if tritonserver refuses it. Returns
 * false if reading fails; see `worker_lost` or `fault` of the lane. `partial` is NULL if nothing is read from the
 * worker's own memory.
 */
bool output_fill(Lane *lane, PartialResponse *partial, TRITONBACKEND_Response *response, const Tensor *tensor,
    uint64_t total, TRITONSERVER_Error **error);

#endif
