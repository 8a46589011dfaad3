/* Returns memory to the system that was needed once, for very many connections or huge requests, and is unused since.
 *
 * malloc keeps memory freed between live allocations, and pools keep memory for reuse. A separate thread makes pools
 * drop what has been unused for a while, and the allocator return its free pages. It sleeps while nothing is freed.
 */
#ifndef PYTRITON_FRONTEND_THREAD_POOL_MEMORY_TRIM_H
#define PYTRITON_FRONTEND_THREAD_POOL_MEMORY_TRIM_H

#include "base/problem.h"

/* A pool, embedded in the object it is about. */
typedef struct TrimHook {
    struct TrimHook *next, **link; /* memory_trim.c's */
    /* Drop what has not been needed since the last call. Returns whether there may be more to drop next time. In any
     * thread.
     */
    bool (*drop)(struct TrimHook *hook);
} TrimHook;

/* Configure the allocator to keep little, before threads are started. */
void memory_trim_configure(void);
/* Start the thread, and enable the cache of blocks, which it trims. */
bool memory_trim_start(Problem *problem);
void memory_trim_stop(void);

void memory_trim_register(TrimHook *hook);
/* It is not being called, and will not be called any more. */
void memory_trim_unregister(TrimHook *hook);

/* More was freed than a request needs: wake the thread after a while. Fast enough for the end of each connection. Any
 * thread.
 */
void memory_trim_notify(void);
/* Do immediately what the thread does. Returns whether there may be more to drop next time. */
bool memory_trim_run(void);

#endif
