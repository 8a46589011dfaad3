/* A table from names to pointers, for names that clients choose: its hash cannot be guessed from outside. */
#ifndef PYTRITON_FRONT_NAMES_H
#define PYTRITON_FRONT_NAMES_H

#include "base/slice.h"

typedef struct NamesEntry NamesEntry;

/* All zero is an empty one. It copies names, and owns no values. Whoever shares it between threads locks. */
typedef struct {
    NamesEntry *entries;
    size_t count, room; /* `room`: a power of two, or 0 */
} Names;

/* The memory of the table; values are the caller's. */
void names_free(Names *names);
/* NULL: there is no such. */
void *names_get(const Names *names, Slice name);
/* Add a name, or give it another value, which is not NULL. False: there is no memory, and nothing has changed. */
bool names_put(Names *names, Slice name, void *value);
/* Returns the value that it had, NULL: none. */
void *names_remove(Names *names, Slice name);
/* All of them, in no order: begin with `*position` = 0. False: there are no more. The table must not change meanwhile. */
bool names_next(const Names *names, size_t *position, Slice *name, void **value);

/* A hash of bytes that cannot be guessed from outside (SipHash-1-3 with a key of this process's own). */
uint64_t names_hash(Slice name);

#endif
