/* Which regions of shared memory clients have registered: one table for all processes that serve these clients.
 *
 * It lies in a file without a name that the dispatcher gives to each of its servers. So regions outlive a server: the one that takes its place, or that
 * is started after a crash, maps them when they are used; and while two serve, each sees what clients of the other one register.
 *
 * A process changes and searches it with a lock on the file, which the kernel takes from one that dies. Within a process, the caller locks.
 */
#ifndef PYTRITON_FRONT_REGION_TABLE_H
#define PYTRITON_FRONT_REGION_TABLE_H

#include "base/problem.h"

#include <limits.h>

enum { REGION_NAME = 1024, REGION_KEY = NAME_MAX };

/* A region as it was registered. */
typedef struct {
    uint64_t offset, size;
    uint64_t file_device, file_inode; /* of the system: what the key named then */
    int64_t device; /* of CUDA */
    bool cuda;
    uint16_t name_size, key_size;
    char name[REGION_NAME], key[REGION_KEY + 1]; /* no NUL at their ends; of CUDA, the key is the handle */
} RegionEntry;

/* Where a region stands. It is told from another one that gets its place later. */
typedef struct {
    uint64_t slot, generation;
} RegionPlace;

typedef struct RegionTable RegionTable;

/* `fd` is the caller's, and has to stay; -1: a table of this process alone. At most `most` regions are put into it. */
RegionTable *region_table_new(int fd, uint64_t most, Problem *problem);
void region_table_free(RegionTable *table);

/* False: there is one of that name (PROBLEM_EXISTS), or as many as may be (PROBLEM_TOO_MANY). */
bool region_table_put(RegionTable *table, const RegionEntry *entry, RegionPlace *place, Problem *problem);
/* The same before there is anything of it. */
bool region_table_may_put(RegionTable *table, Slice name, Problem *problem);
/* False: there is none of that name. */
bool region_table_find(RegionTable *table, Slice name, RegionEntry *entry, RegionPlace *place);
/* Whether a region still stands there: no system call. */
bool region_table_has(const RegionTable *table, RegionPlace place);
void region_table_remove(RegionTable *table, RegionPlace place);
/* All of them: begin with `*position` = 0. False: there are no more. */
bool region_table_next(RegionTable *table, uint64_t *position, RegionEntry *entry, RegionPlace *place);

#endif
