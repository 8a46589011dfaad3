/* Memory that is allocated in pieces and freed as a whole. */
#ifndef PYTRITON_FRONTEND_MEMORY_ARENA_H
#define PYTRITON_FRONTEND_MEMORY_ARENA_H

#include <stddef.h>

typedef struct ArenaBlock ArenaBlock;

/* An arena of all zeros is empty. */
typedef struct {
    ArenaBlock *blocks; /* the block in use comes first */
} Arena;

/* Allocate memory that is aligned for any tensor. Returns NULL without memory. */
void *arena_allocate(Arena *arena, size_t size);
/* Free everything. Up to `kept` bytes stay for reuse, in one block. */
void arena_reset(Arena *arena, size_t kept);
void arena_free(Arena *arena);

#endif
