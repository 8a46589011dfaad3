/* Idle arenas that one large batch has made large. */
#ifndef PYTRITON_IDLE_H
#define PYTRITON_IDLE_H

#include "lane/memory.h"

/* Nothing in the arena is needed any more: give back what exceeds what arenas keep, when that has not been needed for a
 * while. Until then, or until idle_end, the owner must leave the arena alone. */
void idle_begin(Arena *arena);
/* Take an arena off the list: it is used again, or closed. */
void idle_end(Arena *arena);

#endif
