/* What requests.c and responses.c have in common. */
#ifndef PYTRITON_TENSORS_H
#define PYTRITON_TENSORS_H

#include "proxy.h"

typedef struct {
    const char *name;
    int size; /* the bytes of an element, 0: they differ */
} Datatype;

/* By TRITONSERVER_DataType. */
extern const Datatype datatypes[TYPE_COUNT];

/* Copy from or to memory of one of Triton's types; false: it lies on a device that cannot be reached. */
bool copied(void *to, const void *from, size_t size, int memory_type);

#endif
