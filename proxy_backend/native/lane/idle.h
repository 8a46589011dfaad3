/* Idle arenas that a large batch has grown. */
#ifndef PYTRITON_IDLE_H
#define PYTRITON_IDLE_H

#include "lane/memory.h"

/* Nothing in the arena is used any more: return the memory beyond the kept size once it has been unused for a while.
 * Until then, or until idle_end, the owner must not touch the arena.
 */
void idle_begin(Arena *arena);
/* Remove an arena from the list: it is used again, or closed. */
void idle_end(Arena *arena);

#endif
