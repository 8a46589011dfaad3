/* Memory that clients share with the server: regions in /dev/shm, and of GPUs. Any thread. */
#ifndef PYTRITON_FRONTEND_CALLS_SHARED_MEMORY_H
#define PYTRITON_FRONTEND_CALLS_SHARED_MEMORY_H

#include "base/problem.h"
#include "common/buffer.h"

typedef struct SharedMemory SharedMemory;
typedef struct SharedRegion SharedRegion;

/* Create a set of at most `most` regions. Each is a mapping, of which a process can have some ten thousand. `fd` is
 * the table that the dispatcher's servers share (region_table.h). With -1, the regions belong to this process alone.
 */
SharedMemory *shared_memory_new(uint64_t most, int fd, Problem *problem);
void shared_memory_free(SharedMemory *all);

/* Register a part of the file `key` in /dev/shm, such as "/mine". */
bool shared_memory_register(SharedMemory *all, Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem);
/* Register GPU memory, given a handle of cudaIpcGetMemHandle (64 bytes). */
bool shared_memory_register_cuda(
    SharedMemory *all, Slice name, Slice handle, int64_t device, uint64_t size, Problem *problem);

/* Unregister the region `name` of a kind, or all of this kind if it is "". Requests in flight can still use them. */
bool shared_memory_unregister(SharedMemory *all, bool cuda, Slice name, Problem *problem);

/* A registered region. */
typedef struct {
    Slice name, key;
    uint64_t offset, size;
    int64_t device;
} SharedRegionStatus;
/* Call `report` for the region `name` of a kind, or for all of this kind, sorted by name, if it is "". An unknown name
 * is a problem.
 */
bool shared_memory_status(SharedMemory *all, bool cuda, Slice name,
    void (*report)(void *user, const SharedRegionStatus *status), void *user, Problem *problem);

/* Returns a region, after checking that it has the given part. The caller releases it with shared_region_unref.
 * Returns NULL with a problem if there is no such region, it is too small, or it is truncated.
 */
SharedRegion *shared_memory_find(SharedMemory *all, Slice name, uint64_t offset, uint64_t size, Problem *problem);
/* Returns whether the file has its full size, and no missing part has been accessed. After returning false with a
 * problem once, it always does.
 */
bool shared_region_is_intact(SharedRegion *region, Problem *problem);
void shared_region_unref(SharedRegion *region);
/* Returns the region's address. GPU memory can be read there only by the core and its backends. */
void *shared_region_base(const SharedRegion *region);
bool shared_region_is_cuda(const SharedRegion *region);
int64_t shared_region_device(const SharedRegion *region);

#endif
