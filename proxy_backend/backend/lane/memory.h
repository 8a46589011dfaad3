/* Shared memory that this end writes (Arena) and that the other end writes (Mapped). See
 * pytriton/_protocol/lanes/arena.py.
 */
#ifndef PYTRITON_BACKEND_LANE_MEMORY_H
#define PYTRITON_BACKEND_LANE_MEMORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Milliseconds after which unused memory is returned to the system. */
#ifndef RETAIN_MS
#define RETAIN_MS 10000
#endif

/* Memory that this end writes: a growing memfd, sealed against shrinking. Not thread-safe. */
typedef struct Arena {
    int fd; /* -1 until the first allocation */
    uint8_t *map;
    uint64_t size, used;
    uint64_t backed; /* bytes that have pages; trimming reduces them to RETAINED_BYTES */
    uint64_t needed_ns; /* when more than RETAINED_BYTES were last in use */
    /* Only memory.c uses these. */
    struct Arena *next_idle;
    bool is_idle;
} Arena;

/* Memory that the other end writes. `map` can move when a longer range is mapped. */
typedef struct {
    int fd;
    const uint8_t *map;
    uint64_t size;
} Mapped;

/* A mapped memory with its number. */
typedef struct {
    int64_t number;
    Mapped memory;
} Memory;

/* Allocate `size` bytes. Returns NULL, or an error for free(). */
char *arena_allocate(Arena *arena, uint64_t size, uint64_t *offset);
void arena_reset(Arena *arena);
/* Open another, read-only descriptor. Returns -1 with errno on failure. */
int arena_open_readonly(const Arena *arena);
void arena_close(Arena *arena);

/* Take ownership of a descriptor. Returns false if the other end could still shrink the memory. */
bool mapped_open(Mapped *mapped, int fd);
/* Returns the bytes [offset, offset + size), or NULL if the memory is smaller or cannot be mapped. */
const uint8_t *mapped_bytes(Mapped *mapped, int64_t offset, int64_t size);
void mapped_close(Mapped *mapped);

/* Nothing in the arena is in use any more: trim it after RETAIN_MS. Until then, or until arena_trim_cancel, the owner
 * must not touch the arena.
 */
void arena_trim_schedule(Arena *arena);
/* Cancel the trimming, because the arena is used again or closed. */
void arena_trim_cancel(Arena *arena);

#endif
