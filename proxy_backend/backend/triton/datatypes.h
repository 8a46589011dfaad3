/* tritonserver's tensors: their datatypes, and copies from and to its memory. */
#ifndef PYTRITON_BACKEND_TRITON_DATATYPES_H
#define PYTRITON_BACKEND_TRITON_DATATYPES_H

#include "triton/api.h"

typedef struct {
    const char *name;
    int size; /* the size of an element in bytes, 0: variable */
} Datatype;

/* By DataType. */
extern const Datatype datatypes[TYPE_COUNT];

/* Returns whether this many strings fill this many bytes exactly. */
bool strings_fill(const uint8_t *bytes, uint64_t size, uint64_t count);
/* Copy from or to memory of one of Triton's types. Returns false if it is on a device that cannot be reached. */
bool tensor_copy(void *to, const void *from, size_t size, int memory_type);

#endif
