/* Memory that clients share with the server: regions of /dev/shm, and of GPUs. Any thread. */
#ifndef PYTRITON_FRONT_SHARED_MEMORY_H
#define PYTRITON_FRONT_SHARED_MEMORY_H

#include "base/problem.h"
#include "base/text.h"

typedef struct SharedMemory SharedMemory;
typedef struct SharedRegion SharedRegion;

/* All regions, of which there may be `most`: each is a mapping of the process, which the kernel gives no more than some ten thousand. `fd`: of the table
 * that the dispatcher's servers share (region_table.h); -1: the regions are this process's alone. */
SharedMemory *shared_memory_new(uint64_t most, int fd, Problem *problem);
void shared_memory_free(SharedMemory *all);

/* Map a part of what lies in /dev/shm under that key, such as "/mine". */
bool shared_memory_register(SharedMemory *all, Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem);
/* Map memory of a GPU, of which a handle of cudaIpcGetMemHandle tells (64 bytes). */
bool shared_memory_register_cuda(
    SharedMemory *all, Slice name, Slice handle, int64_t device, uint64_t size, Problem *problem);

/* One, or of `name` "" all, of one kind; requests that use it still do, to their end. */
bool shared_memory_unregister(SharedMemory *all, bool cuda, Slice name, Problem *problem);

/* What is registered. */
typedef struct {
    Slice name, key;
    uint64_t offset, size;
    int64_t device;
} SharedRegionStatus;
/* Call `tell` for one, or with `name` "" for all, of one kind, by name. A name that is not there is a problem. */
bool shared_memory_status(SharedMemory *all, bool cuda, Slice name,
    void (*tell)(void *user, const SharedRegionStatus *status), void *user, Problem *problem);

/* A part of a region, to be released by shared_region_unref. The problem: there is no such region, it is too small, or it is not whole. */
SharedRegion *shared_memory_find(SharedMemory *all, Slice name, uint64_t offset, uint64_t size, Problem *problem);
/* Whether the file still has all of it, and nobody has touched a part that it had not. False, with the problem, from then on. */
bool shared_region_is_whole(SharedRegion *region, Problem *problem);
SharedRegion *shared_region_ref(SharedRegion *region);
void shared_region_unref(SharedRegion *region);
/* Where it lies: of a GPU only the core and its backends can read it. */
void *shared_region_base(const SharedRegion *region);
bool shared_region_is_cuda(const SharedRegion *region);
int64_t shared_region_device(const SharedRegion *region);

#endif
