/* Shared memory: this end's (Arena) and the other end's (Mapped). See pytriton/_protocol/lanes/arena.py. */
#ifndef PYTRITON_MEMORY_H
#define PYTRITON_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Milliseconds after which memory that is not needed is given back. */
#ifndef KEPT_MS
#define KEPT_MS 10000
#endif

/* The writing end: a memfd, sealed against shrinking, that grows. Not for several threads at once. */
typedef struct Arena {
    int fd; /* -1: none yet */
    uint8_t *map;
    uint64_t size, used;
    uint64_t backed; /* so many bytes have pages: what one large batch took is given back after a while */
    uint64_t needed_ns; /* when more than what is kept was in use the last time */
    /* Used by idle.c. */
    struct Arena *next_idle;
    bool is_idle;
} Arena;

/* The reading end. `map` may move when it is asked for more. */
typedef struct {
    int fd;
    const uint8_t *map;
    uint64_t size;
} Mapped;

/* A mapped memory that is known by a number. */
typedef struct {
    int64_t number;
    Mapped memory;
} Memory;

/* Allocate bytes. Returns NULL, or the reason why there are none, for free(). */
char *arena_allocate(Arena *arena, uint64_t size, uint64_t *offset);
/* Make room for so many bytes at once, so that the mapping moves only once. */
char *arena_reserve(Arena *arena, uint64_t size);
void arena_reset(Arena *arena);
/* Whether it has more than is always kept; when the excess is due to be given back; and give it back. Nothing in it may
 * be in use. */
bool arena_is_large(const Arena *arena);
uint64_t arena_due_ns(const Arena *arena);
void arena_give_back(Arena *arena);
/* A new read-only descriptor; -1 with errno. */
int arena_open_readonly(const Arena *arena);
void arena_close(Arena *arena);

/* Takes the descriptor over. False: the other end could still shrink the memory. */
bool mapped_take(Mapped *mapped, int fd);
/* The bytes [offset, offset + size), or NULL: the memory is smaller, or cannot be mapped. */
const uint8_t *mapped_bytes(Mapped *mapped, int64_t offset, int64_t size);
void mapped_close(Mapped *mapped);

#endif
