/* Shared memory of this end (Arena) and of the other end (Mapped). See pytriton/_protocol/lanes/arena.py. */
#ifndef PYTRITON_BACKEND_LANE_MEMORY_H
#define PYTRITON_BACKEND_LANE_MEMORY_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Milliseconds after which unused memory is returned. */
#ifndef RETAIN_MS
#define RETAIN_MS 10000
#endif

/* The writing end: a growing memfd that is sealed against shrinking. Not thread-safe. */
typedef struct Arena {
    int fd; /* -1: none yet */
    uint8_t *map;
    uint64_t size, used;
    uint64_t backed; /* bytes that have pages: what a large batch took is returned after a while */
    uint64_t needed_ns; /* when more than the kept size was last in use */
    /* Used by memory.c. */
    struct Arena *next_idle;
    bool is_idle;
} Arena;

/* The reading end. `map` may move when a longer range is mapped. */
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

/* Allocate bytes. Returns NULL, or why that failed, for free(). */
char *arena_allocate(Arena *arena, uint64_t size, uint64_t *offset);
void arena_reset(Arena *arena);
/* Returns whether the arena exceeds the size that is always kept; returns when the excess is due; returns the excess
 * to the system. Nothing in the arena may be in use.
 */
bool arena_is_large(const Arena *arena);
uint64_t arena_trim_due_ns(const Arena *arena);
void arena_trim(Arena *arena);
/* Returns a new read-only descriptor; -1 with errno. */
int arena_open_readonly(const Arena *arena);
void arena_close(Arena *arena);

/* Take the descriptor over. Returns false if the other end could still shrink the memory. */
bool mapped_open(Mapped *mapped, int fd);
/* Returns the bytes [offset, offset + size); NULL if the memory is smaller or cannot be mapped. */
const uint8_t *mapped_bytes(Mapped *mapped, int64_t offset, int64_t size);
void mapped_close(Mapped *mapped);

/* Nothing in the arena is used any more: return the memory beyond the kept size once it has been unused for a while.
 * Until then, or until arena_trim_cancel, the owner must not touch the arena.
 */
void arena_trim_schedule(Arena *arena);
/* Remove an arena from the list: it is used again, or closed. */
void arena_trim_cancel(Arena *arena);

#endif
