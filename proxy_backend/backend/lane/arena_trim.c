/* A separate thread returns memory: a proxy without a batch runs no code. Arenas of the usual size never come here. */
#define _GNU_SOURCE
#include "lane/arena_trim.h"

#include "base/clock.h"
#include "base/thread.h"

#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static Arena *idle;
static bool running;

/* Remove the arena from the list. With the lock held. */
static void remove_arena(Arena *arena)
{
    Arena **at = &idle;
    while (*at && *at != arena)
        at = &(*at)->next_idle;
    if (*at)
        *at = arena->next_idle;
    __atomic_store_n(&arena->is_idle, false, __ATOMIC_RELEASE);
}

/* Return the memory that is due. Returns when to check next; 0: when an arena is added. With the lock held. */
static uint64_t trim_due(void)
{
    uint64_t now_ns = clock_monotonic_ns(), next_ns = 0;
    for (Arena *arena = idle, *next; arena; arena = next) {
        next = arena->next_idle;
        uint64_t due_ns = arena_trim_due_ns(arena);
        if (due_ns <= now_ns) {
            arena_trim(arena);
            remove_arena(arena);
        } else if (next_ns == 0 || due_ns < next_ns) {
            next_ns = due_ns;
        }
    }
    return next_ns;
}

static void *trim_loop(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        uint64_t due_ns = trim_due();
        struct timespec due = {.tv_sec = (time_t)(due_ns / 1000000000), .tv_nsec = (long)(due_ns % 1000000000)};
        if (due_ns)
            pthread_cond_timedwait(&changed, &lock, &due);
        else
            pthread_cond_wait(&changed, &lock);
    }
    return NULL;
}

/* With the lock held. */
static bool ensure_running(void)
{
    pthread_t thread;
    if (running)
        return true;
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &clock);
    pthread_condattr_destroy(&clock);
    running = thread_start(&thread, THREAD_SMALL_STACK, trim_loop, NULL);
    if (running)
        pthread_detach(thread);
    return running;
}

void arena_trim_schedule(Arena *arena)
{
    if (arena_is_large(arena))
        arena_reset(arena);
    if (!arena_is_large(arena))
        return;
    pthread_mutex_lock(&lock);
    if (!arena->is_idle && ensure_running()) {
        arena->is_idle = true;
        arena->next_idle = idle;
        idle = arena;
        pthread_cond_signal(&changed);
    }
    pthread_mutex_unlock(&lock);
}

void arena_trim_cancel(Arena *arena)
{
    if (!__atomic_load_n(&arena->is_idle, __ATOMIC_ACQUIRE))
        return;
    pthread_mutex_lock(&lock);
    remove_arena(arena);
    pthread_mutex_unlock(&lock);
}
