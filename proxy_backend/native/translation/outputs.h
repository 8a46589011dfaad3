/* The outputs of a response: from the worker's description to tritonserver's memory. */
#ifndef PYTRITON_OUTPUTS_H
#define PYTRITON_OUTPUTS_H

#include "lane/lane.h"
#include "triton/api.h"
#include "wire/msgpack.h"

enum { MOST_DIMS = 64 };

/* A tensor of the worker, checked. */
typedef struct {
    char *name;
    int datatype;
    int64_t shape[MOST_DIMS];
    uint32_t dims;
    int64_t size;
    uint64_t elements;
    const uint8_t *bytes; /* NULL: in the worker's own memory; it may change them while they are looked at */
    int64_t address;
} Tensor;

/* Read one; false: `lane->fault` says what is wrong. The name is for free(). `may_lend`: it may lie in the worker's own
 * memory. */
bool output_get(Lane *lane, Reader *reader, bool may_lend, Tensor *tensor);
/* Describe the fault of an output, of that name or NULL, in `lane->fault`; return false. */
bool output_wrong(Lane *lane, const char *name, const char *what);

/* A response that is being filled from the worker's own memory. If the worker ends meanwhile, the next one's answer goes to
 * the same places: tritonserver gives an output no second one. */
typedef struct {
    TRITONBACKEND_Response *response;
    struct Made *made;
} Unfinished;
/* NULL: no memory. */
Unfinished *unfinished_new(void);
void unfinished_free(Unfinished *unfinished);

/* Give tritonserver one output of a response that has `total` bytes with it; `error` if it does not take it. False: the
 * lane's `lost` or `fault` says why not. `unfinished`: NULL where nothing is read from the worker's own memory. */
bool output_fill(Lane *lane, Unfinished *unfinished, TRITONBACKEND_Response *response, const Tensor *tensor,
    uint64_t total, TRITONSERVER_Error **error);

#endif
