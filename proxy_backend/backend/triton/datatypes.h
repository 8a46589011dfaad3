/* Tensors in tritonserver: datatypes, and copies to and from its memory. */
#ifndef PYTRITON_BACKEND_TRITON_DATATYPES_H
#define PYTRITON_BACKEND_TRITON_DATATYPES_H

#include "triton/api.h"

typedef struct {
    const char *name;
    int size; /* size of an element in bytes; 0 if it varies */
} Datatype;

/* Names and sizes, by DataType. */
extern const Datatype datatypes[TYPE_COUNT];

/* Returns whether exactly `count` strings fill exactly `size` bytes. */
bool strings_fill(const uint8_t *bytes, uint64_t size, uint64_t count);
/* Copy from or to memory of a type of Triton. Returns false if it is on a device that cannot be accessed. */
bool tensor_copy(void *to, const void *from, size_t size, int memory_type);

#endif
