#define _GNU_SOURCE
#include "calls/shared_memory.h"

#include "base/name_table.h"
#include "common/utf8.h"
#include "memory/bus_guard.h"
#include "calls/cuda.h"
#include "calls/region_table.h"
#include "net/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Prefixes of the files of Triton's python backend, and of the daemon (new_shm_prefix in
 * dispatcher/server/frontend.py).
 */
#define PYTHON_BACKEND_PREFIX "triton_python_backend_shm_region_"
#define DAEMON_PREFIX "pytriton-"

/* A region that this process has mapped. */
struct SharedRegion {
    unsigned refs;
    RegionPlace place;
    char *name, *key; /* the key of CUDA memory is its handle */
    size_t key_size;
    uint64_t offset, size;
    uint64_t file_device, file_inode;
    int64_t device;
    void *mapped; /* for system memory: the whole pages */
    size_t mapped_size;
    void *base;
    bool cuda;
    int fd;           /* for system memory: the file; otherwise -1 */
    BusGuard *guard;  /* guards the mapping */
    bool truncated;   /* the file was found to be truncated; atomic */
};

struct SharedMemory {
    pthread_mutex_t lock; /* guards the fields below */
    RegionTable *table; /* all registered regions; both kinds share the names */
    NameTable regions; /* the mapped regions, some of which may no longer be registered */
};

SharedMemory *shared_memory_new(uint64_t most, int fd, Problem *problem)
{
    SharedMemory *all = calloc(1, sizeof *all);
    if (all == NULL || pthread_mutex_init(&all->lock, NULL) != 0) {
        free(all);
        problem_no_memory(problem);
        return NULL;
    }
    all->table = region_table_new(fd, most, problem);
    if (all->table)
        return all;
    shared_memory_free(all);
    return NULL;
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
    while (name_table_next(&all->regions, &position, &name, &region))
        shared_region_unref(region);
    name_table_free(&all->regions);
    region_table_free(all->table);
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
        return problem_set(problem, PROBLEM_INVALID, "%s must be 1 to %zu bytes of UTF-8 without NUL", what, most);
    return true;
}

static SharedRegion *region_new(Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem)
{
    SharedRegion *region = calloc(1, sizeof *region);
    if (region) {
        *region = (SharedRegion){.refs = 1,
            .fd = -1,
            .name = slice_copy(name),
            .key = slice_copy(key),
            .key_size = key.size,
            .offset = offset,
            .size = size};
        if (region->name && region->key)
            return region;
        shared_region_unref(region);
    }
    problem_no_memory(problem);
    return NULL;
}

/* Store a mapped region under its name. The table takes over the caller's reference. The caller holds the lock. */
static bool store_mapped(SharedMemory *all, SharedRegion *region, Problem *problem)
{
    Slice name = slice_of(region->name);
    SharedRegion *former = name_table_get(&all->regions, name);
    if (!name_table_put(&all->regions, name, region))
        return problem_no_memory(problem);
    shared_region_unref(former);
    return true;
}

/* Returns the mapped region of a name, or NULL if it is not mapped, or no longer registered. The caller holds the
 * lock.
 */
static SharedRegion *find_mapped(SharedMemory *all, Slice name)
{
    SharedRegion *region = name_table_get(&all->regions, name);
    if (region == NULL || region_table_has(all->table, region->place))
        return region;
    name_table_remove(&all->regions, name);
    shared_region_unref(region);
    return NULL;
}

/* Count a registration that was refused because there are too many regions. Returns false. */
static bool count_refusal(const Problem *problem)
{
    if (problem->kind == PROBLEM_TOO_MANY)
        refusals_count(REFUSED_REGIONS);
    return false;
}

/* Register a region, unless its name is taken. Takes over the caller's reference. */
static bool put(SharedMemory *all, SharedRegion *region, Problem *problem)
{
    RegionEntry entry = {.offset = region->offset,
        .size = region->size,
        .file_device = region->file_device,
        .file_inode = region->file_inode,
        .device = region->device,
        .cuda = region->cuda,
        .name_size = (uint16_t)strlen(region->name),
        .key_size = (uint16_t)region->key_size};
    memcpy(entry.name, region->name, entry.name_size);
    memcpy(entry.key, region->key, entry.key_size);
    pthread_mutex_lock(&all->lock);
    bool known = region_table_put(all->table, &entry, &region->place, problem);
    if (known && !store_mapped(all, region, problem)) {
        region_table_remove(all->table, region->place);
        known = false;
    }
    pthread_mutex_unlock(&all->lock);
    if (known)
        return true;
    shared_region_unref(region);
    return count_refusal(problem);
}

/* Check whether a region with this name can be added, before it is mapped. */
static bool may_begin(SharedMemory *all, Slice name, Problem *problem)
{
    pthread_mutex_lock(&all->lock);
    bool may = region_table_may_put(all->table, name, problem);
    pthread_mutex_unlock(&all->lock);
    return may || count_refusal(problem);
}

/* Returns whether a file in /dev/shm belongs to Triton's python backend or the daemon. Clients must not read and
 * change other clients' tensors there.
 */
static bool is_internal(const char *name)
{
    return strncmp(name, PYTHON_BACKEND_PREFIX, strlen(PYTHON_BACKEND_PREFIX)) == 0 ||
        strncmp(name, DAEMON_PREFIX, strlen(DAEMON_PREFIX)) == 0;
}

/* Open the file with the region's key in /dev/shm. The key must not be a path to another directory. */
static int open_key(const SharedRegion *region, Problem *problem)
{
    const char *name = region->key + (*region->key == '/');
    int fd = -1;
    if (is_internal(name)) {
        problem_set(problem, PROBLEM_INVALID,
            "shared memory key '%s' is refused: names that begin with '%s' or '%s' are reserved for the server",
            region->key, PYTHON_BACKEND_PREFIX, DAEMON_PREFIX);
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

/* Returns whether the file contains the whole region. Reading beyond the file's end would crash the process. */
static bool file_has_part(const SharedRegion *region, const struct stat *status)
{
    uint64_t end;
    return !__builtin_add_overflow(region->offset, region->size, &end) && end <= (uint64_t)status->st_size;
}

static bool has_part(SharedRegion *region, Problem *problem)
{
    struct stat status;
    if (fstat(region->fd, &status) != 0 || !S_ISREG(status.st_mode))
        return problem_set(problem, PROBLEM_INVALID, "'%s' is not a shared memory object", region->key);
    if (!file_has_part(region, &status))
        return problem_set(
            problem, PROBLEM_INVALID, "failed to register shared memory region '%s': invalid args", region->name);
    region->file_device = status.st_dev;
    region->file_inode = status.st_ino;
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
    /* Guard whole pages, since truncation removes whole pages. */
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

/* Map the file with the region's key. */
static bool map_key(SharedRegion *region, Problem *problem)
{
    region->fd = open_key(region, problem);
    return region->fd >= 0 && has_part(region, problem) && map(region, problem);
}

/* Map GPU memory. The region's key is the handle. */
static bool map_handle(SharedRegion *region, int64_t device, Problem *problem)
{
    Slice handle = {region->key, region->key_size};
    if (!cuda_open(handle, device, region->size, &region->base, problem))
        return false;
    region->cuda = true;
    region->device = device;
    return true;
}

bool shared_memory_register(SharedMemory *all, Slice name, Slice key, uint64_t offset, uint64_t size, Problem *problem)
{
    if (!is_text(name, REGION_NAME, "the name of a shared memory region", problem) ||
        !is_text(key, REGION_KEY, "the key of a shared memory region", problem) || !may_begin(all, name, problem))
        return false;
    if (size == 0)
        return problem_set(
            problem, PROBLEM_INVALID, "shared memory region '%.*s' must have at least one byte", SLICE_ARGS(name));
    SharedRegion *region = region_new(name, key, offset, size, problem);
    if (region == NULL)
        return false;
    if (map_key(region, problem))
        return put(all, region, problem);
    shared_region_unref(region);
    return false;
}

bool shared_memory_register_cuda(
    SharedMemory *all, Slice name, Slice handle, int64_t device, uint64_t size, Problem *problem)
{
    if (!is_text(name, REGION_NAME, "the name of a shared memory region", problem) || !may_begin(all, name, problem))
        return false;
    Slice kept = {handle.start, handle.size < REGION_KEY ? handle.size : REGION_KEY};
    SharedRegion *region = region_new(name, kept, 0, size, problem);
    if (region == NULL)
        return false;
    if (map_handle(region, device, problem))
        return put(all, region, problem);
    shared_region_unref(region);
    return false;
}

/* Map a region that a client registered with another process. Returns NULL with a problem, otherwise a region whose
 * reference the table holds. The caller holds the lock.
 */
static SharedRegion *take_over(SharedMemory *all, Slice name, Problem *problem)
{
    RegionEntry entry;
    RegionPlace place;
    if (!region_table_find(all->table, name, &entry, &place)) {
        problem_set(problem, PROBLEM_NOT_FOUND, "Unable to find shared memory region: '%.*s'", SLICE_ARGS(name));
        return NULL;
    }
    SharedRegion *region = region_new(name, (Slice){entry.key, entry.key_size}, entry.offset, entry.size, problem);
    if (region == NULL)
        return NULL;
    region->place = place;
    bool done = entry.cuda ? map_handle(region, entry.device, problem) : map_key(region, problem);
    if (done && !entry.cuda && (region->file_device != entry.file_device || region->file_inode != entry.file_inode))
        done = problem_set(problem, PROBLEM_INVALID,
            "the key '%s' of shared memory region '%.*s' now refers to different memory than when it was registered: "
            "register it again",
            region->key, SLICE_ARGS(name));
    if (done && store_mapped(all, region, problem))
        return region;
    shared_region_unref(region);
    return NULL;
}

/* ── unregistering ──────────────────────────────────────────────────────────────────────────────── */

/* Unregister a region. The caller holds the lock. */
static void forget(SharedMemory *all, Slice name, RegionPlace place)
{
    region_table_remove(all->table, place);
    find_mapped(all, name); /* Removes the mapping, because the region is not registered any more. */
}

static void unregister_all(SharedMemory *all, bool cuda)
{
    uint64_t position = 0;
    RegionEntry entry;
    RegionPlace place;
    pthread_mutex_lock(&all->lock);
    while (region_table_next(all->table, &position, &entry, &place))
        if (entry.cuda == cuda)
            forget(all, (Slice){entry.name, entry.name_size}, place);
    pthread_mutex_unlock(&all->lock);
}

bool shared_memory_unregister(SharedMemory *all, bool cuda, Slice name, Problem *problem)
{
    RegionEntry entry;
    RegionPlace place;
    if (name.size == 0) {
        unregister_all(all, cuda);
        return true;
    }
    pthread_mutex_lock(&all->lock);
    bool is_there = region_table_find(all->table, name, &entry, &place), other = is_there && entry.cuda != cuda;
    if (is_there && !other)
        forget(all, name, place);
    pthread_mutex_unlock(&all->lock);
    if (other)
        return problem_set(problem, PROBLEM_INVALID, "shared memory region '%.*s' is %s", SLICE_ARGS(name),
            cuda ? "a system region, not a CUDA region" : "a CUDA region, not a system region");
    return true;
}

/* ── status ─────────────────────────────────────────────────────────────────────────────────────── */

static void report_region(const RegionEntry *entry, void (*report)(void *, const SharedRegionStatus *), void *user)
{
    SharedRegionStatus status = {.name = {entry->name, entry->name_size},
        .key = {entry->key, entry->cuda ? 0 : entry->key_size},
        .offset = entry->offset,
        .size = entry->size,
        .device = entry->device};
    report(user, &status);
}

static int by_name(const void *one, const void *other)
{
    const RegionEntry *a = one, *b = other;
    size_t size = a->name_size < b->name_size ? a->name_size : b->name_size;
    int order = memcmp(a->name, b->name, size);
    return order ? order : (int)a->name_size - (int)b->name_size;
}

/* Returns all registered regions of a kind, for free(), or NULL without memory. */
static RegionEntry *list(SharedMemory *all, bool cuda, size_t *count)
{
    uint64_t position = 0;
    size_t room = 16;
    RegionPlace place;
    RegionEntry *entries = malloc(room * sizeof *entries);
    *count = 0;
    pthread_mutex_lock(&all->lock);
    while (entries && region_table_next(all->table, &position, &entries[*count], &place)) {
        *count += entries[*count].cuda == cuda;
        if (*count < room)
            continue;
        RegionEntry *more = reallocarray(entries, room *= 2, sizeof *entries);
        if (more == NULL)
            free(entries);
        entries = more;
    }
    pthread_mutex_unlock(&all->lock);
    return entries;
}

bool shared_memory_status(SharedMemory *all, bool cuda, Slice name,
    void (*report)(void *user, const SharedRegionStatus *status), void *user, Problem *problem)
{
    size_t count;
    RegionEntry *entries = list(all, cuda, &count);
    if (entries == NULL)
        return problem_no_memory(problem);
    qsort(entries, count, sizeof *entries, by_name);
    bool found = name.size == 0;
    for (size_t i = 0; i < count; i++) {
        if (name.size == 0 || slice_equals(name, (Slice){entries[i].name, entries[i].name_size})) {
            report_region(&entries[i], report, user);
            found = true;
        }
    }
    free(entries);
    return found ? true
                 : problem_set(problem, PROBLEM_NOT_FOUND, "Unable to find %s shared memory region: '%.*s'",
                       cuda ? "cuda" : "system", SLICE_ARGS(name));
}

SharedRegion *shared_memory_find(SharedMemory *all, Slice name, uint64_t offset, uint64_t size, Problem *problem)
{
    pthread_mutex_lock(&all->lock);
    SharedRegion *region = find_mapped(all, name);
    if (region == NULL)
        region = take_over(all, name, problem);
    if (region)
        __atomic_add_fetch(&region->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&all->lock);
    uint64_t end;
    if (region == NULL)
        return NULL;
    if (offset > region->size || __builtin_add_overflow(offset, size, &end) || end > region->size) {
        problem_set(
            problem, PROBLEM_INVALID, "Invalid offset + byte size for shared memory region: '%s'", region->name);
        shared_region_unref(region);
        return NULL;
    }
    if (!shared_region_is_intact(region, problem)) {
        shared_region_unref(region);
        return NULL;
    }
    return region;
}

bool shared_region_is_intact(SharedRegion *region, Problem *problem)
{
    if (region->cuda)
        return true;
    struct stat status;
    /* A page that is partly beyond the file's end can still be accessed, and reads as zeros there. */
    if (fstat(region->fd, &status) != 0 || !file_has_part(region, &status))
        __atomic_store_n(&region->truncated, true, __ATOMIC_RELEASE);
    if (!__atomic_load_n(&region->truncated, __ATOMIC_ACQUIRE) && !bus_guard_is_broken(region->guard))
        return true;
    return problem_set(problem, PROBLEM_INVALID,
        "shared memory region '%s' was truncated while it was registered, so its contents are lost: restore the size "
        "of '%s', then unregister the region and register it again",
        region->name, region->key);
}
