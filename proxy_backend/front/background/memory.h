/* Gives memory back to the system that was needed once, by very many connections or by huge requests, and lies unused since.
 *
 * malloc keeps what is freed between things that stay, and pools keep what they may need again. So a thread of its own lets pools drop what nobody
 * has needed for a while, and the allocator give back its free pages. It sleeps as long as nothing is freed.
 */
#ifndef PYTRITON_FRONT_MEMORY_H
#define PYTRITON_FRONT_MEMORY_H

#include "base/problem.h"

/* A pool; it lies in what it is about. */
typedef struct Reserve {
    struct Reserve *next, **link; /* memory.c's */
    /* Drop what has not been needed since the last time. True: there may be more to drop the next time. In any thread. */
    bool (*drop)(struct Reserve *reserve);
} Reserve;

/* Have the allocator keep little, before there are threads. */
void memory_prepare(void);
/* Begin the thread; without it, nothing is given back. */
bool memory_start(Problem *problem);
void memory_stop(void);

void memory_add(Reserve *reserve);
/* It is not called any more, nor being called. */
void memory_remove(Reserve *reserve);

/* Something was freed that more than a request needs: have the thread look after a while. Cheap enough for the end of each connection. Any thread. */
void memory_freed(void);
/* Do at once what the thread does. True: there may be more to drop the next time. */
bool memory_give_back(void);

#endif
