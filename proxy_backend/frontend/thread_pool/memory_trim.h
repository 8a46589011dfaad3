/* Returns memory to the system that was needed for very many connections or huge requests, and is not used any more.
 *
 * malloc keeps freed memory between allocations in use, and pools keep memory for reuse. A separate thread makes the
 * pools free what has been unused for some time, and the allocator return free pages. It sleeps while nothing is freed.
 */
#ifndef PYTRITON_FRONTEND_THREAD_POOL_MEMORY_TRIM_H
#define PYTRITON_FRONTEND_THREAD_POOL_MEMORY_TRIM_H

#include "base/problem.h"

/* A pool whose unused memory can be freed. It is part of the pool's object. */
typedef struct TrimHook {
    struct TrimHook *next, **link; /* used by memory_trim.c */
    /* Free what has not been used since the last call. Returns whether the next call may free more. Called in any
     * thread.
     */
    bool (*drop)(struct TrimHook *hook);
} TrimHook;

/* Make the allocator keep less memory. Must be called before threads are started. */
void memory_trim_configure(void);
/* Start the thread, and enable the cache of blocks, which it trims. */
bool memory_trim_start(Problem *problem);
void memory_trim_stop(void);

void memory_trim_register(TrimHook *hook);
/* Unregister a hook. Afterwards, it is not being called and will not be called. */
void memory_trim_unregister(TrimHook *hook);

/* Memory was freed that an average request does not need: trim after some time. Fast enough to be called at the end of
 * each connection. Any thread.
 */
void memory_trim_notify(void);
/* Trim now. Returns whether the next call may free more. */
bool memory_trim_run(void);

#endif
