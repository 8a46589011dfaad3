#define _GNU_SOURCE
#include "thread_pool/memory_trim.h"

#include "common/blocks.h"
#include "common/clock.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdatomic.h>

/* Time between the first release and trimming, so that memory in constant use is not freed. */
enum { TRIM_DELAY_MS = 2000 };

/* Thresholds for glibc. Its own ones grow with the largest block that was ever freed, and would let each of its arenas
 * keep up to 64 MiB at its end, which malloc_trim does not return.
 */
enum { LARGE_BLOCK = 4 << 20, RETAINED_AT_END = 2 << 20 };

static pthread_mutex_t hooks_lock = PTHREAD_MUTEX_INITIALIZER;
static TrimHook *hooks; /* guarded by hooks_lock */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards everything below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool started, stopping;
static pthread_t thread;

static atomic_bool freed;

void memory_trim_configure(void)
{
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK);
    mallopt(M_TRIM_THRESHOLD, RETAINED_AT_END);
#endif
}

void memory_trim_register(TrimHook *hook)
{
    pthread_mutex_lock(&hooks_lock);
    hook->next = hooks;
    hook->link = &hooks;
    if (hooks)
        hooks->link = &hook->next;
    hooks = hook;
    pthread_mutex_unlock(&hooks_lock);
}

void memory_trim_unregister(TrimHook *hook)
{
    pthread_mutex_lock(&hooks_lock);
    *hook->link = hook->next;
    if (hook->next)
        hook->next->link = hook->link;
    pthread_mutex_unlock(&hooks_lock);
}

void memory_trim_notify(void)
{
    if (atomic_load_explicit(&freed, memory_order_relaxed) || atomic_exchange(&freed, true))
        return;
    pthread_mutex_lock(&lock);
    pthread_cond_signal(&changed);
    pthread_mutex_unlock(&lock);
}

bool memory_trim_run(void)
{
    bool more = blocks_trim();
    pthread_mutex_lock(&hooks_lock);
    for (TrimHook *hook = hooks; hook; hook = hook->next)
        more |= hook->drop(hook);
    pthread_mutex_unlock(&hooks_lock);
#ifdef __GLIBC__
    malloc_trim(0);
#endif
    return more;
}

/* Wait for TRIM_DELAY_MS, or until the thread has to stop. The caller holds the lock. */
static void wait_a_while(void)
{
    uint64_t until_ns = clock_ns() + TRIM_DELAY_MS * 1000000ull;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u), .tv_nsec = (long)(until_ns % 1000000000u)};
    int error = 0;
    while (!stopping && error == 0)
        error = pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
}

static void *trim_loop(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (!stopping) {
        if (!atomic_load(&freed)) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        wait_a_while();
        if (stopping)
            break;
        atomic_store(&freed, false);
        pthread_mutex_unlock(&lock);
        if (memory_trim_run())
            atomic_store(&freed, true);
        pthread_mutex_lock(&lock);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

bool memory_trim_start(Problem *problem)
{
    stopping = false;
    if (pthread_create(&thread, NULL, trim_loop, NULL) != 0)
        return problem_no_memory(problem);
    pthread_setname_np(thread, "memory");
    blocks_enable_cache();
    started = true;
    return true;
}

void memory_trim_stop(void)
{
    if (!started)
        return;
    pthread_mutex_lock(&lock);
    stopping = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    started = false;
}
