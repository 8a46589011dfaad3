/* A table from names chosen by clients to pointers: its hash cannot be predicted from outside. */
#ifndef PYTRITON_FRONTEND_BASE_NAME_TABLE_H
#define PYTRITON_FRONTEND_BASE_NAME_TABLE_H

#include "common/slice.h"

typedef struct NameTableEntry NameTableEntry;

/* All zero is an empty one. It copies names, and does not own values. Threads that share it must lock. */
typedef struct {
    NameTableEntry *entries;
    size_t count, room; /* `room`: a power of two, or 0 */
} NameTable;

/* Frees the table's memory; values are the caller's. */
void name_table_free(NameTable *names);
/* Returns NULL if there is none. */
void *name_table_get(const NameTable *names, Slice name);
/* Add a name or replace its value, which is not NULL. Returns false without memory, and changes nothing. */
bool name_table_put(NameTable *names, Slice name, void *value);
/* Returns the former value, NULL: none. */
void *name_table_remove(NameTable *names, Slice name);
/* Iterate over all, in no particular order: begin with `*position` = 0. Returns false at the end. The table must not
 * change during this.
 */
bool name_table_next(const NameTable *names, size_t *position, Slice *name, void **value);

/* Returns a hash that cannot be predicted from outside (SipHash-1-3 with a key of this process). */
uint64_t name_table_hash(Slice name);

#endif
