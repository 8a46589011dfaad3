/* Tensors of tritonserver: their datatypes, and copies from and to its memory. */
#ifndef PYTRITON_DATATYPES_H
#define PYTRITON_DATATYPES_H

#include "triton/api.h"

typedef struct {
    const char *name;
    int size; /* the bytes of an element, 0: they differ */
} Datatype;

/* By TRITONSERVER_DataType. */
extern const Datatype datatypes[TYPE_COUNT];

/* Returns whether so many strings fill so many bytes exactly. */
bool are_strings(const uint8_t *bytes, uint64_t size, uint64_t count);
/* Copy from or to memory of one of Triton's types; false: it lies on a device that cannot be reached. */
bool copied(void *to, const void *from, size_t size, int memory_type);

#endif
