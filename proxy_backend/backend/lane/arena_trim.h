/* Idle arenas that a large batch has grown. */
#ifndef PYTRITON_BACKEND_LANE_ARENA_TRIM_H
#define PYTRITON_BACKEND_LANE_ARENA_TRIM_H

#include "lane/memory.h"

/* Nothing in the arena is used any more: return the memory beyond the kept size once it has been unused for a while.
 * Until then, or until arena_trim_cancel, the owner must not touch the arena.
 */
void arena_trim_schedule(Arena *arena);
/* Remove an arena from the list: it is used again, or closed. */
void arena_trim_cancel(Arena *arena);

#endif
