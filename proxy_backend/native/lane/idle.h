/* Arenas that one large batch has made large, and that nobody uses at the moment. */
#ifndef PYTRITON_IDLE_H
#define PYTRITON_IDLE_H

#include "lane/memory.h"

/* Nothing in the arena is needed any more: give back what is more than arenas keep, when that has not been needed for a
 * while. Until then, or until idle_end, the owner must leave the arena alone. */
void idle_begin(Arena *arena);
/* The arena is used again, or closed. */
void idle_end(Arena *arena);

#endif
