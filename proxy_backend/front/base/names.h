/* A table from names chosen by clients to pointers: its hash cannot be predicted from outside. */
#ifndef PYTRITON_FRONT_NAMES_H
#define PYTRITON_FRONT_NAMES_H

#include "base/slice.h"

typedef struct NamesEntry NamesEntry;

/* All zero is an empty one. It copies names, and does not own values. Threads that share it must lock. */
typedef struct {
    NamesEntry *entries;
    size_t count, room; /* `room`: a power of two, or 0 */
} Names;

/* Frees the table's memory; values are the caller's. */
void names_free(Names *names);
/* Returns NULL if there is none. */
void *names_get(const Names *names, Slice name);
/* Add a name or replace its value, which is not NULL. Returns false without memory, and changes nothing. */
bool names_put(Names *names, Slice name, void *value);
/* Returns the former value, NULL: none. */
void *names_remove(Names *names, Slice name);
/* Iterate over all, in no particular order: begin with `*position` = 0. Returns false at the end. The table must not
 * change during this.
 */
bool names_next(const Names *names, size_t *position, Slice *name, void **value);

/* Returns a hash that cannot be predicted from outside (SipHash-1-3 with a key of this process). */
uint64_t names_hash(Slice name);

#endif
