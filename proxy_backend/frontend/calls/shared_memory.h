/* Memory that clients share with the server: regions of /dev/shm, and of GPUs. Any thread. */
#ifndef PYTRITON_FRONTEND_CALLS_SHARED_MEMORY_H
#define PYTRITON_FRONTEND_CALLS_SHARED_MEMORY_H

#include "base/problem.h"
#include "common/buffer.h"

typedef struct SharedMemory SharedMemory;
typedef struct SharedRegion SharedRegion;

/* Create the set of regions, which has at most `most`: each is a mapping, of which a process has at most some ten
 * thousand. `fd`: of the table that the dispatcher's servers share (region_table.h); -1: the regions belong to this
 * process alone.
 */
SharedMemory *shared_memory_new(uint64_t most, int fd, Problem *problem);
void shared_memory_free(SharedMemory *all);

/* Map a part of the object with that key in /dev/shm, such as "/mine". */
bool shared_memory_register(SharedMemory *all, Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem);
/* Map GPU memory, given a handle of cudaIpcGetMemHandle (64 bytes). */
bool shared_memory_register_cuda(
    SharedMemory *all, Slice name, Slice handle, int64_t device, uint64_t size, Problem *problem);

/* Unregister one, or with `name` "" all, of one kind; requests in flight keep using it. */
bool shared_memory_unregister(SharedMemory *all, bool cuda, Slice name, Problem *problem);

/* A registered region. */
typedef struct {
    Slice name, key;
    uint64_t offset, size;
    int64_t device;
} SharedRegionStatus;
/* Call `report` for one, or with `name` "" for all, of one kind, sorted by name. An unknown name is a problem. */
bool shared_memory_status(SharedMemory *all, bool cuda, Slice name,
    void (*report)(void *user, const SharedRegionStatus *status), void *user, Problem *problem);

/* Returns a part of a region, to be released by shared_region_unref. The problem: there is no such region, it is too
 * small, or it is truncated.
 */
SharedRegion *shared_memory_find(SharedMemory *all, Slice name, uint64_t offset, uint64_t size, Problem *problem);
/* Returns whether the file still has its full size, and no missing part was accessed. Once false, with the problem,
 * it stays so.
 */
bool shared_region_is_intact(SharedRegion *region, Problem *problem);
SharedRegion *shared_region_ref(SharedRegion *region);
void shared_region_unref(SharedRegion *region);
/* Returns its address: only the core and its backends can read a GPU's. */
void *shared_region_base(const SharedRegion *region);
bool shared_region_is_cuda(const SharedRegion *region);
int64_t shared_region_device(const SharedRegion *region);

#endif
