#define _GNU_SOURCE
#include "lane/memory.h"

#include "base/available_memory.h"
#include "common/clock.h"
#include "base/strings.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static Arena *idle;
static bool running;

/* Bytes that an arena keeps when it is trimmed. */
#ifndef RETAINED_BYTES
#define RETAINED_BYTES (64 << 20)
#endif

/* Returns whether the arena has more pages than are always kept. */
static bool is_large(const Arena *arena)
{
    return arena->backed > RETAINED_BYTES;
}

/* Returns when the excess pages are due to be returned to the system. */
static uint64_t trim_due_ns(const Arena *arena)
{
    return arena->needed_ns + RETAIN_MS * UINT64_C(1000000);
}

/* Return the excess pages. Nothing in the arena may be in use. */
static void trim(Arena *arena)
{
    /* The size and all mappings stay, so the other end does not have to be notified. Locked memory stays as well. */
    if (is_large(arena) && madvise(arena->map + RETAINED_BYTES, arena->backed - RETAINED_BYTES, MADV_REMOVE) == 0)
        arena->backed = RETAINED_BYTES;
}

/* Remove the arena from the list of idle arenas. The caller holds the lock. */
static void remove_arena(Arena *arena)
{
    Arena **at = &idle;
    while (*at && *at != arena)
        at = &(*at)->next_idle;
    if (*at)
        *at = arena->next_idle;
    __atomic_store_n(&arena->is_idle, false, __ATOMIC_RELEASE);
}

/* Trim the arenas that are due. Returns when the next one is due, or 0 if there is none. The caller holds the lock. */
static uint64_t trim_due(void)
{
    uint64_t now_ns = clock_ns(), next_ns = 0;
    for (Arena *arena = idle, *next; arena; arena = next) {
        next = arena->next_idle;
        uint64_t due_ns = trim_due_ns(arena);
        if (due_ns <= now_ns) {
            trim(arena);
            remove_arena(arena);
        } else if (next_ns == 0 || due_ns < next_ns) {
            next_ns = due_ns;
        }
    }
    return next_ns;
}

static void *trim_loop(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        uint64_t due_ns = trim_due();
        struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000), .tv_nsec = (long)(due_ns % 1000000000)};
        if (due_ns)
            pthread_cond_timedwait(&changed, &lock, &due);
        else
            pthread_cond_wait(&changed, &lock);
    }
    return NULL;
}

/* Start the trimming thread unless it is running. The caller holds the lock. */
static bool ensure_running(void)
{
    pthread_t thread;
    if (running)
        return true;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &clock);
    pthread_condattr_destroy(&clock);
    running = thread_start(&thread, THREAD_SMALL_STACK, trim_loop, NULL);
    if (running)
        pthread_detach(thread);
    return running;
}

void arena_trim_schedule(Arena *arena)
{
    if (is_large(arena))
        arena_reset(arena);
    if (!is_large(arena))
        return;
    pthread_mutex_lock(&lock);
    if (!arena->is_idle && ensure_running()) {
        arena->is_idle = true;
        arena->next_idle = idle;
        idle = arena;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
}

void arena_trim_cancel(Arena *arena)
{
    if (!__atomic_load_n(&arena->is_idle, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&lock);
    remove_arena(arena);
    pthread_mutex_unlock(&lock);
}

enum { ALIGNMENT = 64, MIN_BYTES = 1 << 16 };
static const uint64_t max_doubled = 1 << 26;

static char *memory_error(uint64_t size, const char *why)
{
    return strdup_printf("cannot allocate %lu bytes of shared memory: %s", size, why);
}

static char *grow(Arena *arena, uint64_t needed)
{
    uint64_t size = MIN_BYTES, page = (uint64_t)sysconf(_SC_PAGESIZE);
    while (size < needed && size < max_doubled)
        size *= 2;
    if (size < needed)
        size = (needed + page - 1) / page * page;
    uint64_t available = memory_available();
    if (size - arena->backed > available) {
        char text[128];
        snprintf(text, sizeof text, "%lu are allocated and only %lu more are available on this machine", arena->backed,
            available);
        return memory_error(size, text);
    }
    if (arena->fd < 0) { /* The file may exist without a mapping, if mapping failed last time. */
        int fd = memfd_create("pytriton-lane", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        /* The worker's descriptor is read-only, but the worker can open another one through /proc. Prevent it from
         * sealing the file against our writes.
         */
        if (fd < 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) != 0) {
            char *text = memory_error(size, strerror(errno));
            if (fd >= 0)
                close(fd);
            return text;
        }
        arena->fd = fd;
    }
    /* Reserve the pages. Otherwise, a lack of memory would show as SIGBUS in the middle of a copy. */
    int failed;
    do
        failed = posix_fallocate(arena->fd, (off_t)arena->backed, (off_t)(size - arena->backed));
    while (failed == EINTR);
    if (failed)
        return memory_error(size, strerror(failed));
    if (size > RETAINED_BYTES)
        arena->needed_ns = clock_ns();
    if (size <= arena->size) { /* The arena has been this large before, and was trimmed. */
        arena->backed = size;
        return NULL;
    }
    void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, arena->fd, 0);
    if (map == MAP_FAILED)
        return memory_error(size, strerror(errno));
    if (arena->map)
        munmap(arena->map, arena->size);
    arena->map = map;
    arena->size = arena->backed = size;
    return NULL;
}

static uint64_t aligned(uint64_t offset)
{
    return (offset + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Reserve this many bytes at once, so that the mapping moves only once. */
static char *arena_reserve(Arena *arena, uint64_t size)
{
    uint64_t end = aligned(arena->used) + size;
    return end > arena->backed ? grow(arena, end) : NULL;
}

char *arena_allocate(Arena *arena, uint64_t size, uint64_t *offset)
{
    char *failure = arena_reserve(arena, size);
    if (failure)
        return failure;
    *offset = aligned(arena->used);
    arena->used = *offset + size;
    return NULL;
}

void arena_reset(Arena *arena)
{
    if (is_large(arena)) {
        uint64_t now = clock_ns();
        if (arena->used > RETAINED_BYTES)
            arena->needed_ns = now;
        else if (trim_due_ns(arena) <= now)
            trim(arena);
    }
    arena->used = 0;
}

int arena_open_readonly(const Arena *arena)
{
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", arena->fd);
    return open(path, O_RDONLY | O_CLOEXEC);
}

void arena_close(Arena *arena)
{
    if (arena->map)
        munmap(arena->map, arena->size);
    if (arena->fd >= 0)
        close(arena->fd);
    *arena = (Arena){.fd = -1};
}

bool mapped_open(Mapped *mapped, int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    *mapped = (Mapped){.fd = fd};
    if (seals >= 0 && seals & F_SEAL_SHRINK)
        return true;
    mapped_close(mapped);
    return false;
}

const uint8_t *mapped_bytes(Mapped *mapped, int64_t offset, int64_t size)
{
    if (offset < 0 || size < 0 || offset > INT64_MAX - size)
        return NULL;
    if ((uint64_t)(offset + size) > mapped->size || mapped->map == NULL) {
        struct stat file;
        if (fstat(mapped->fd, &file) != 0 || file.st_size == 0 || offset + size > file.st_size)
            return NULL;
        void *map = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_SHARED, mapped->fd, 0);
        if (map == MAP_FAILED)
            return NULL;
        if (mapped->map)
            munmap((void *)mapped->map, mapped->size);
        mapped->map = map;
        mapped->size = (uint64_t)file.st_size;
    }
    return mapped->map + offset;
}

void mapped_close(Mapped *mapped)
{
    if (mapped->map)
        munmap((void *)mapped->map, mapped->size);
    if (mapped->fd >= 0)
        close(mapped->fd);
    *mapped = (Mapped){.fd = -1};
}
