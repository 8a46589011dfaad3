/* The table of registered shared memory regions, for all processes that serve the same clients.
 *
 * It is an unnamed file that the dispatcher passes to each of its servers. So regions outlive a server: its successor,
 * after a replacement or a crash, maps them when they are used. While two servers run, each sees the regions that were
 * registered with the other one.
 *
 * A process locks the file to change or search the table. The kernel releases the lock when the process ends. Threads
 * of one process need a lock of their own.
 */
#ifndef PYTRITON_FRONTEND_CALLS_REGION_TABLE_H
#define PYTRITON_FRONTEND_CALLS_REGION_TABLE_H

#include "base/problem.h"

#include <limits.h>

enum { REGION_NAME = 1024, REGION_KEY = NAME_MAX };

/* A region as it was registered. */
typedef struct {
    uint64_t offset, size;
    uint64_t file_device, file_inode; /* for system memory: the file that the key named at that time */
    int64_t device; /* for CUDA memory */
    bool cuda;
    uint16_t name_size, key_size;
    char name[REGION_NAME], key[REGION_KEY + 1]; /* not terminated by NUL; for CUDA memory, the key is the handle */
} RegionEntry;

/* Identifies a registration, also if its slot is used again later. */
typedef struct {
    uint64_t slot, generation;
} RegionPlace;

typedef struct RegionTable RegionTable;

/* Create a table of at most `most` regions in the file `fd`, which the caller keeps open. With -1, the table belongs
 * to this process alone.
 */
RegionTable *region_table_new(int fd, uint64_t most, Problem *problem);
void region_table_free(RegionTable *table);

/* Add a region. Returns false if the name exists (PROBLEM_EXISTS) or the table is full (PROBLEM_TOO_MANY). */
bool region_table_put(RegionTable *table, const RegionEntry *entry, RegionPlace *place, Problem *problem);
/* Check beforehand whether a region could be added. */
bool region_table_may_put(RegionTable *table, Slice name, Problem *problem);
/* Find a region. Returns false if the name does not exist. */
bool region_table_find(RegionTable *table, Slice name, RegionEntry *entry, RegionPlace *place);
/* Returns whether a region is still registered. Makes no system call. */
bool region_table_has(const RegionTable *table, RegionPlace place);
void region_table_remove(RegionTable *table, RegionPlace place);
/* Iterate over all regions. `*position` is 0 at first. Returns false after the last one. */
bool region_table_next(RegionTable *table, uint64_t *position, RegionEntry *entry, RegionPlace *place);

#endif
