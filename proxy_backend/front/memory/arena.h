/* Memory that is taken piece by piece and given back at once. */
#ifndef PYTRITON_FRONT_ARENA_H
#define PYTRITON_FRONT_ARENA_H

#include <stddef.h>

typedef struct ArenaBlock ArenaBlock;

/* All zero is an empty one. */
typedef struct {
    ArenaBlock *blocks; /* the one that is taken from comes first */
} Arena;

/* Aligned for anything that a tensor may hold. NULL: there is no memory. */
void *arena_take(Arena *arena, size_t size);
/* Take all back. At most `kept` bytes stay for the next use, in one piece. */
void arena_reset(Arena *arena, size_t kept);
void arena_free(Arena *arena);

#endif
