#define _GNU_SOURCE
#include "calls/region_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_SLOTS = 1 << 20 };

/* A slot is free if `hash` is 0. It is written last, so that a killed process leaves no incomplete region. */
typedef struct {
    uint64_t hash, generation;
} Index;

/* The file's contents. All zeros are an empty table. Unused parts occupy no memory. */
typedef struct {
    uint64_t used; /* number of slots that have ever been used; all others are free */
    uint64_t generations;
    uint64_t count;
    Index index[MAX_SLOTS];
    RegionEntry slots[MAX_SLOTS];
} File;

struct RegionTable {
    int fd; /* opened by each process, since a lock belongs to the open file description */
    uint64_t most;
    File *file;
};

RegionTable *region_table_new(int fd, uint64_t most, Problem *problem)
{
    char path[32];
    RegionTable *table = calloc(1, sizeof *table);
    if (table == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    int own = fd < 0 ? memfd_create("regions", MFD_CLOEXEC) : -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd < 0 ? own : fd);
    table->most = most < MAX_SLOTS ? most : MAX_SLOTS;
    table->fd = open(path, O_RDWR | O_CLOEXEC);
    if (own >= 0)
        close(own);
    bool sized = table->fd >= 0 && ftruncate(table->fd, sizeof *table->file) == 0;
    void *mapped = sized
        ? mmap(NULL, sizeof *table->file, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, table->fd, 0)
        : MAP_FAILED;
    if (mapped != MAP_FAILED) {
        table->file = mapped;
        return table;
    }
    problem_set(problem, PROBLEM_INTERNAL, "the table of shared memory regions cannot be mapped: %s", strerror(errno));
    region_table_free(table);
    return NULL;
}

void region_table_free(RegionTable *table)
{
    if (table == NULL)
        return;
    if (table->file)
        munmap(table->file, sizeof *table->file);
    if (table->fd >= 0)
        close(table->fd);
    free(table);
}

/* ── with the file's lock held ────────────────────────────────────────────────────────────────────────── */

static void lock(RegionTable *table)
{
    while (flock(table->fd, LOCK_EX) != 0 && errno == EINTR)
        ;
}

static void unlock(RegionTable *table)
{
    flock(table->fd, LOCK_UN);
}

/* FNV-1a, which gives the same result in all processes. Names are compared as well. */
static uint64_t hash_of(const char *name, size_t size)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ (unsigned char)name[i]) * 0x100000001b3u;
    return hash ? hash : 1;
}

static bool is_at(const File *file, uint64_t slot, uint64_t hash, Slice name)
{
    const RegionEntry *entry = &file->slots[slot];
    return file->index[slot].hash == hash && entry->name_size == name.size &&
        memcmp(entry->name, name.start, name.size) == 0;
}

/* Returns the index of a name, or MAX_SLOTS if it is absent. */
static uint64_t find(const File *file, Slice name)
{
    uint64_t hash = hash_of(name.start, name.size);
    for (uint64_t slot = 0; slot < file->used && slot < MAX_SLOTS; slot++)
        if (is_at(file, slot, hash, name))
            return slot;
    return MAX_SLOTS;
}

static uint64_t find_free(const File *file)
{
    uint64_t slot = 0;
    while (slot < file->used && slot < MAX_SLOTS && file->index[slot].hash)
        slot++;
    return slot;
}

static bool may_put(const RegionTable *table, Slice name, uint64_t *slot, Problem *problem)
{
    const File *file = table->file;
    if (find(file, name) != MAX_SLOTS)
        return problem_set(problem, PROBLEM_EXISTS, "shared memory region '%.*s' already in manager", SLICE_ARGS(name));
    if (table->most == 0)
        return problem_set(problem, PROBLEM_UNSUPPORTED,
            "this server does not accept clients' shared memory (setting allow_client_shm): send tensors in the "
            "request");
    *slot = find_free(file);
    return (file->count < table->most && *slot < MAX_SLOTS) ||
        problem_set(problem, PROBLEM_TOO_MANY,
            "%llu shared memory regions are registered, which is the maximum (regions): unregister those that are not "
            "needed",
            (unsigned long long)table->most);
}

static void put(File *file, uint64_t slot, const RegionEntry *entry, RegionPlace *place)
{
    file->slots[slot] = *entry;
    file->index[slot].generation = ++file->generations;
    if (slot >= file->used)
        file->used = slot + 1;
    *place = (RegionPlace){slot, file->generations};
    __atomic_store_n(&file->index[slot].hash, hash_of(entry->name, entry->name_size), __ATOMIC_RELEASE);
    file->count++;
}

/* ── public functions ─────────────────────────────────────────────────────────────────────────────────── */

bool region_table_put(RegionTable *table, const RegionEntry *entry, RegionPlace *place, Problem *problem)
{
    uint64_t slot;
    lock(table);
    bool may = may_put(table, (Slice){entry->name, entry->name_size}, &slot, problem);
    if (may)
        put(table->file, slot, entry, place);
    unlock(table);
    return may;
}

bool region_table_may_put(RegionTable *table, Slice name, Problem *problem)
{
    uint64_t slot;
    lock(table);
    bool may = may_put(table, name, &slot, problem);
    unlock(table);
    return may;
}

bool region_table_find(RegionTable *table, Slice name, RegionEntry *entry, RegionPlace *place)
{
    const File *file = table->file;
    lock(table);
    uint64_t slot = find(file, name);
    if (slot != MAX_SLOTS) {
        *entry = file->slots[slot];
        *place = (RegionPlace){slot, file->index[slot].generation};
    }
    unlock(table);
    return slot != MAX_SLOTS;
}

bool region_table_has(const RegionTable *table, RegionPlace place)
{
    const Index *index = &table->file->index[place.slot];
    return __atomic_load_n(&index->hash, __ATOMIC_ACQUIRE) &&
        __atomic_load_n(&index->generation, __ATOMIC_ACQUIRE) == place.generation;
}

void region_table_remove(RegionTable *table, RegionPlace place)
{
    lock(table);
    if (region_table_has(table, place)) {
        __atomic_store_n(&table->file->index[place.slot].hash, 0, __ATOMIC_RELEASE);
        table->file->count--;
    }
    unlock(table);
}

bool region_table_next(RegionTable *table, uint64_t *position, RegionEntry *entry, RegionPlace *place)
{
    const File *file = table->file;
    bool found = false;
    lock(table);
    while (!found && *position < file->used && *position < MAX_SLOTS) {
        uint64_t slot = (*position)++;
        found = file->index[slot].hash != 0;
        if (found) {
            *entry = file->slots[slot];
            *place = (RegionPlace){slot, file->index[slot].generation};
        }
    }
    unlock(table);
    return found;
}
