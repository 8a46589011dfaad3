/* The outputs of a response: copied from the worker's memory to tritonserver's. */
#ifndef PYTRITON_BACKEND_TRANSLATION_OUTPUTS_H
#define PYTRITON_BACKEND_TRANSLATION_OUTPUTS_H

#include "lane/lane.h"
#include "triton/api.h"
#include "wire/msgpack.h"

enum { MAX_DIMS = 64 };

/* A worker's tensor, validated. */
typedef struct {
    char *name;
    int datatype;
    int64_t shape[MAX_DIMS];
    uint32_t dims;
    int64_t size;
    uint64_t elements;
    const uint8_t *bytes; /* NULL: in the worker's own memory; the worker may change the bytes during reads */
    int64_t address;
} Tensor;

/* Read an output. Returns false with the reason in `lane->fault`. The name is for free(). `may_lend`: it may be in
 * the worker's own memory.
 */
bool output_read(Lane *lane, Reader *reader, bool may_lend, Tensor *tensor);
/* Describe an invalid output, by name or NULL, in `lane->fault`. Returns false. */
bool output_fault(Lane *lane, const char *name, const char *what);

/* A response that is being filled from the worker's own memory. If the worker ends before that is done, the next
 * worker's answer is written to the same buffers, because tritonserver provides only one buffer for an output.
 */
typedef struct {
    TRITONBACKEND_Response *response;
    struct OutputBuffer *buffers;
} PartialResponse;
/* NULL without memory. */
PartialResponse *partial_response_new(void);
void partial_response_free(PartialResponse *partial);

/* Pass one output of a response of `total` bytes to tritonserver. Sets `error` if tritonserver refuses it. Returns
 * false if reading fails; see the lane's `worker_lost` or `fault`. `partial`: NULL if nothing is read from the worker's
 * own memory.
 */
bool output_fill(Lane *lane, PartialResponse *partial, TRITONBACKEND_Response *response, const Tensor *tensor,
    uint64_t total, TRITONSERVER_Error **error);

#endif
