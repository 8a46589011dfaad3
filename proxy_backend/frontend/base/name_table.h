/* A hash table from names to pointers. Clients choose the names, so the hash is keyed and cannot be predicted. */
#ifndef PYTRITON_FRONTEND_BASE_NAME_TABLE_H
#define PYTRITON_FRONTEND_BASE_NAME_TABLE_H

#include "common/slice.h"

typedef struct NameTableEntry NameTableEntry;

/* A table of all zeros is empty. It copies the names and does not own the values. Not thread-safe. */
typedef struct {
    NameTableEntry *entries;
    size_t count, room; /* `room` is a power of two, or 0 */
} NameTable;

/* Free the table's memory, but not the values. */
void name_table_free(NameTable *names);
/* Returns the value of a name, or NULL. */
void *name_table_get(const NameTable *names, Slice name);
/* Set the value of a name; it must not be NULL. Returns false without memory; nothing changes then. */
bool name_table_put(NameTable *names, Slice name, void *value);
/* Remove a name. Returns its value, or NULL if it was absent. */
void *name_table_remove(NameTable *names, Slice name);
/* Iterate over all entries, in no particular order. `*position` is 0 at first. Returns false after the last one. The
 * table must not change meanwhile.
 */
bool name_table_next(const NameTable *names, size_t *position, Slice *name, void **value);

/* Returns the hash of a name (SipHash-1-3 with a random key of this process). */
uint64_t name_table_hash(Slice name);

#endif
