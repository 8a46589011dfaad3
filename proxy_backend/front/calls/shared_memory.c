#define _GNU_SOURCE
#include "calls/shared_memory.h"

#include "base/names.h"
#include "base/utf8.h"
#include "memory/bus_guard.h"
#include "calls/cuda.h"
#include "net/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* What Triton's python backend, and the daemon (new_shm_prefix in dispatcher/triton/front.py), begin the names of their own memory with. */
#define PYTHON_BACKEND_PREFIX "triton_python_backend_shm_region_"
#define DAEMON_PREFIX "pytriton-"
/* Names of regions, and keys: a key is a file's name. */
enum { NAME = 1024, KEY = NAME_MAX };

struct SharedRegion {
    unsigned refs;
    char *name, *key;
    uint64_t offset, size;
    int64_t device;
    void *mapped; /* of the system: whole pages */
    size_t mapped_size;
    void *base;
    bool cuda;
    int fd;           /* of the system: the file; -1: none */
    BusGuard *guard;  /* of the mapping */
    bool truncated;   /* the file was seen without all of it; atomic */
};

struct SharedMemory {
    pthread_mutex_t lock;
    Names regions; /* of both kinds: a name is one region */
    uint64_t most;
};

SharedMemory *shared_memory_new(uint64_t most, Problem *problem)
{
    SharedMemory *all = calloc(1, sizeof *all);
    if (all == NULL || pthread_mutex_init(&all->lock, NULL) != 0) {
        free(all);
        problem_no_memory(problem);
        return NULL;
    }
    all->most = most;
    return all;
}

SharedRegion *shared_region_ref(SharedRegion *region)
{
    if (region)
        __atomic_add_fetch(&region->refs, 1, __ATOMIC_RELAXED);
    return region;
}

void shared_region_unref(SharedRegion *region)
{
    if (region == NULL || __atomic_sub_fetch(&region->refs, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (region->cuda) {
        cuda_close(region->base);
    } else if (region->mapped) {
        bus_guard_remove(region->guard);
        munmap(region->mapped, region->mapped_size);
    }
    if (region->fd >= 0)
        close(region->fd);
    free(region->name);
    free(region->key);
    free(region);
}

void shared_memory_free(SharedMemory *all)
{
    if (all == NULL)
        return;
    size_t position = 0;
    Slice name;
    void *region;
    while (names_next(&all->regions, &position, &name, &region))
        shared_region_unref(region);
    names_free(&all->regions);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

void *shared_region_base(const SharedRegion *region)
{
    return region->base;
}

bool shared_region_is_cuda(const SharedRegion *region)
{
    return region->cuda;
}

int64_t shared_region_device(const SharedRegion *region)
{
    return region->device;
}

/* ── registering ────────────────────────────────────────────────────────────────────────────────── */

static bool is_text(Slice text, size_t most, const char *what, Problem *problem)
{
    if (text.size == 0 || text.size > most || !utf8_is_valid(text) || memchr(text.start, '\0', text.size))
        return problem_set(problem, PROBLEM_INVALID, "%s has to be 1 to %zu bytes of UTF-8 without NUL", what, most);
    return true;
}

static SharedRegion *region_new(Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem)
{
    SharedRegion *region = calloc(1, sizeof *region);
    if (region) {
        *region = (SharedRegion){
            .refs = 1, .fd = -1, .name = slice_copy(name), .key = slice_copy(key), .offset = offset, .size = size};
        if (region->name && region->key)
            return region;
        shared_region_unref(region);
    }
    problem_no_memory(problem);
    return NULL;
}

/* Whether there may be one more of that name. With the lock held. */
static bool may_be(SharedMemory *all, Slice name, Problem *problem)
{
    if (names_get(&all->regions, name))
        return problem_set(problem, PROBLEM_EXISTS, "shared memory region '%.*s' already in manager", SLICE_ARGS(name));
    if (all->regions.count < all->most)
        return true;
    refusals_count(REFUSED_REGIONS);
    return problem_set(problem, PROBLEM_TOO_MANY,
        "%llu shared memory regions are registered, as many as there may be (regions): unregister those that are not "
        "needed",
        (unsigned long long)all->most);
}

/* The same before there is anything of it. */
static bool may_begin(SharedMemory *all, Slice name, Problem *problem)
{
    pthread_mutex_lock(&all->lock);
    bool may = may_be(all, name, problem);
    pthread_mutex_unlock(&all->lock);
    return may;
}

/* Make it known, unless its name is taken. The caller's reference is the table's then. */
static bool put(SharedMemory *all, SharedRegion *region, Problem *problem)
{
    Slice name = slice_of(region->name);
    pthread_mutex_lock(&all->lock);
    bool may = may_be(all, name, problem);
    bool known = may && names_put(&all->regions, name, region);
    pthread_mutex_unlock(&all->lock);
    if (known)
        return true;
    if (may)
        problem_no_memory(problem);
    shared_region_unref(region);
    return false;
}

/* Whether a name in /dev/shm is one of those that Triton's python backend and the daemon give to their own memory: a client could read and change
 * other clients' tensors there. */
static bool is_internal(const char *name)
{
    return strncmp(name, PYTHON_BACKEND_PREFIX, strlen(PYTHON_BACKEND_PREFIX)) == 0 ||
        strncmp(name, DAEMON_PREFIX, strlen(DAEMON_PREFIX)) == 0;
}

/* Open what lies under a key in /dev/shm: one file there, and no path to another place. */
static int open_key(const SharedRegion *region, Problem *problem)
{
    const char *name = region->key + (*region->key == '/');
    int fd = -1;
    if (is_internal(name)) {
        problem_set(problem, PROBLEM_INVALID,
            "shared memory key '%s' is refused: names that begin with '%s' or '%s' are the server's own", region->key,
            PYTHON_BACKEND_PREFIX, DAEMON_PREFIX);
        return -1;
    }
    errno = EINVAL;
    if (*name && strchr(name, '/') == NULL && strcmp(name, "..") != 0 && strcmp(name, ".") != 0)
        fd = shm_open(region->key, O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0)
        problem_set(
            problem, PROBLEM_INTERNAL, "Unable to open shared memory region: '%s' (%s)", region->key, strerror(errno));
    return fd;
}

/* Whether the file has the part that was named: reading beyond its end would be the process's end. */
static bool file_has_part(const SharedRegion *region, const struct stat *status)
{
    uint64_t end;
    return !__builtin_add_overflow(region->offset, region->size, &end) && end <= (uint64_t)status->st_size;
}

static bool has_part(const SharedRegion *region, Problem *problem)
{
    struct stat status;
    if (fstat(region->fd, &status) != 0 || !S_ISREG(status.st_mode))
        return problem_set(problem, PROBLEM_INVALID, "'%s' is no shared memory", region->key);
    if (!file_has_part(region, &status))
        return problem_set(
            problem, PROBLEM_INVALID, "failed to register shared memory region '%s': invalid args", region->name);
    return true;
}

static bool map(SharedRegion *region, Problem *problem)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), begin = region->offset - region->offset % page;
    size_t size = (size_t)(region->offset - begin + region->size);
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, region->fd, (off_t)begin);
    if (mapped == MAP_FAILED)
        return problem_set(problem, PROBLEM_INTERNAL,
            "unable to process address space of shared memory region '%s' (%s)", region->name, strerror(errno));
    /* Pages are what is taken away. */
    region->guard = bus_guard_add(mapped, (size + page - 1) / page * page);
    if (region->guard == NULL) {
        munmap(mapped, size);
        return problem_no_memory(problem);
    }
    region->mapped = mapped;
    region->mapped_size = size;
    region->base = (char *)mapped + (region->offset - begin);
    return true;
}

bool shared_memory_register(SharedMemory *all, Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem)
{
    if (!is_text(name, NAME, "the name of a shared memory region", problem) ||
        !is_text(key, KEY, "the key of a shared memory region", problem) || !may_begin(all, name, problem))
        return false;
    if (size == 0)
        return problem_set(problem, PROBLEM_INVALID, "shared memory region '%.*s' has no bytes", SLICE_ARGS(name));
    SharedRegion *region = region_new(name, key, offset, size, problem);
    if (region == NULL)
        return false;
    region->fd = open_key(region, problem);
    if (region->fd < 0 || !has_part(region, problem) || !map(region, problem)) {
        shared_region_unref(region);
        return false;
    }
    return put(all, region, problem);
}

bool shared_memory_register_cuda(
    SharedMemory *all, Slice name, Slice handle, int64_t device, uint64_t size, Problem *problem)
{
    if (!is_text(name, NAME, "the name of a shared memory region", problem) || !may_begin(all, name, problem))
        return false;
    SharedRegion *region = region_new(name, SLICE(""), 0, size, problem);
    if (region == NULL)
        return false;
    if (!cuda_open(handle, device, size, &region->base, problem)) {
        shared_region_unref(region);
        return false;
    }
    region->cuda = true;
    region->device = device;
    return put(all, region, problem);
}

/* ── unregistering ──────────────────────────────────────────────────────────────────────────────── */

/* Any one of a kind, out of the table; NULL: there is none. With the lock held. */
static SharedRegion *take_any(SharedMemory *all, bool cuda)
{
    size_t position = 0;
    Slice name;
    void *value;
    while (names_next(&all->regions, &position, &name, &value))
        if (((SharedRegion *)value)->cuda == cuda)
            return names_remove(&all->regions, slice_of(((SharedRegion *)value)->name));
    return NULL;
}

static void unregister_all(SharedMemory *all, bool cuda)
{
    SharedRegion *region;
    do {
        pthread_mutex_lock(&all->lock);
        region = take_any(all, cuda);
        pthread_mutex_unlock(&all->lock);
        shared_region_unref(region);
    } while (region);
}

bool shared_memory_unregister(SharedMemory *all, bool cuda, Slice name, Problem *problem)
{
    if (name.size == 0) {
        unregister_all(all, cuda);
        return true;
    }
    pthread_mutex_lock(&all->lock);
    SharedRegion *region = names_get(&all->regions, name);
    bool other = region && region->cuda != cuda;
    if (region && !other)
        names_remove(&all->regions, name);
    pthread_mutex_unlock(&all->lock);
    if (other)
        return problem_set(problem, PROBLEM_INVALID, "shared memory region '%.*s' is %s", SLICE_ARGS(name),
            cuda ? "the system's and not CUDA's" : "CUDA's and not the system's");
    shared_region_unref(region);
    return true;
}

/* ── looking ────────────────────────────────────────────────────────────────────────────────────── */

static void tell_of(const SharedRegion *region, void (*tell)(void *, const SharedRegionStatus *), void *user)
{
    SharedRegionStatus status = {.name = slice_of(region->name),
        .key = slice_of(region->key),
        .offset = region->offset,
        .size = region->size,
        .device = region->device};
    tell(user, &status);
}

static int by_name(const void *one, const void *other)
{
    return strcmp((*(SharedRegion *const *)one)->name, (*(SharedRegion *const *)other)->name);
}

/* All regions of a kind, each with a reference. NULL: there is no memory. */
static SharedRegion **list(SharedMemory *all, bool cuda, size_t *count)
{
    size_t position = 0;
    Slice name;
    void *value;
    pthread_mutex_lock(&all->lock);
    SharedRegion **regions = malloc((all->regions.count + 1) * sizeof *regions);
    *count = 0;
    while (regions && names_next(&all->regions, &position, &name, &value))
        if (((SharedRegion *)value)->cuda == cuda)
            regions[(*count)++] = shared_region_ref(value);
    pthread_mutex_unlock(&all->lock);
    return regions;
}

bool shared_memory_status(SharedMemory *all, bool cuda, Slice name,
    void (*tell)(void *user, const SharedRegionStatus *status), void *user, Problem *problem)
{
    size_t count;
    SharedRegion **regions = list(all, cuda, &count);
    if (regions == NULL)
        return problem_no_memory(problem);
    qsort(regions, count, sizeof *regions, by_name);
    bool found = name.size == 0;
    for (size_t i = 0; i < count; i++) {
        if (name.size == 0 || slice_is(name, regions[i]->name)) {
            tell_of(regions[i], tell, user);
            found = true;
        }
        shared_region_unref(regions[i]);
    }
    free(regions);
    return found ? true
                 : problem_set(problem, PROBLEM_NOT_FOUND, "Unable to find %s shared memory region: '%.*s'",
                       cuda ? "cuda" : "system", SLICE_ARGS(name));
}

SharedRegion *shared_memory_find(SharedMemory *all, Slice name, uint64_t offset, uint64_t size, Problem *problem)
{
    pthread_mutex_lock(&all->lock);
    SharedRegion *region = shared_region_ref(names_get(&all->regions, name));
    pthread_mutex_unlock(&all->lock);
    uint64_t end;
    if (region == NULL) {
        problem_set(problem, PROBLEM_NOT_FOUND, "Unable to find shared memory region: '%.*s'", SLICE_ARGS(name));
        return NULL;
    }
    if (offset > region->size || __builtin_add_overflow(offset, size, &end) || end > region->size) {
        problem_set(
            problem, PROBLEM_INVALID, "Invalid offset + byte size for shared memory region: '%s'", region->name);
        shared_region_unref(region);
        return NULL;
    }
    if (!shared_region_is_whole(region, problem)) {
        shared_region_unref(region);
        return NULL;
    }
    return region;
}

bool shared_region_is_whole(SharedRegion *region, Problem *problem)
{
    if (region->cuda)
        return true;
    struct stat status;
    /* A page of which a part is gone can still be touched: it reads as zeros. */
    if (fstat(region->fd, &status) != 0 || !file_has_part(region, &status))
        __atomic_store_n(&region->truncated, true, __ATOMIC_RELEASE);
    if (!__atomic_load_n(&region->truncated, __ATOMIC_ACQUIRE) && !bus_guard_is_broken(region->guard))
        return true;
    return problem_set(problem, PROBLEM_INVALID,
        "shared memory region '%s' was truncated while it was registered, so what lies in it is lost: make '%s' whole, "
        "then unregister the region and register it again",
        region->name, region->key);
}
