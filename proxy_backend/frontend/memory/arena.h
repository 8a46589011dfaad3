/* Memory that is allocated piece by piece and freed at once. */
#ifndef PYTRITON_FRONTEND_MEMORY_ARENA_H
#define PYTRITON_FRONTEND_MEMORY_ARENA_H

#include <stddef.h>

typedef struct ArenaBlock ArenaBlock;

/* All zero is an empty one. */
typedef struct {
    ArenaBlock *blocks; /* the current one comes first */
} Arena;

/* Allocate, aligned for any tensor. NULL without memory. */
void *arena_allocate(Arena *arena, size_t size);
/* Free everything. At most `kept` bytes stay for reuse, in one piece. */
void arena_reset(Arena *arena, size_t kept);
void arena_free(Arena *arena);

#endif
