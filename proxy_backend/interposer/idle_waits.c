/* Lengthens the waits of idle schedulers of Triton's core.
 *
 * The core has a thread for each model with dynamic or sequence batching. While the model's queue is empty, this thread
 * waits for a request at most half a second, then waits again: 100 idle models wake a CPU 200 times a second.
 *
 * A request that arrives notifies the thread, so the limit is not needed to serve it. After some waits that nobody has
 * ended, the thread is taken as idle, and its next waits may last longer. A notification makes it busy again. The limit
 * matters in one case: the core notifies the thread to exit without holding its lock, so a thread that is just about to
 * wait misses it. Then unloading the model takes as long as this wait, hence it is not longer.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#define EXPORTED __attribute__((visibility("default")))

/* The core's limit, how much of it may have passed before the wait, and the limit for idle threads. */
enum { CORE_LIMIT_US = 500000, TOLERANCE_US = 1000, IDLE_LIMIT_US = 60000000 };
/* Number of successive waits that reach the core's limit before a thread counts as idle. */
enum { EXPIRED_WHEN_IDLE = 10 };
/* The thread that ends idle sequences has this nice level, and nobody notifies it; schedulers have 0 or 5. */
enum { REAPER_NICE = 10 };

typedef int Wait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until);

EXPORTED Wait pthread_cond_clockwait;

static pthread_once_t found = PTHREAD_ONCE_INIT;
static Wait *libc_wait;

static void find_libc_wait(void)
{
    void *function = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    memcpy(&libc_wait, &function, sizeof function);
}

/* The number of waits of this thread that have reached the core's limit since the last notification. */
static _Thread_local unsigned expired;
/* The last instruction that called from this thread with the core's limit, and whether it belongs to the core. */
static _Thread_local const void *last_caller;
static _Thread_local bool is_core;

static bool called_by_core(const void *caller)
{
    if (caller != last_caller) {
        Dl_info object;
        const char *name = dladdr(caller, &object) && object.dli_fname ? strrchr(object.dli_fname, '/') : NULL;
        is_core = name && strncmp(name, "/libtritonserver", strlen("/libtritonserver")) == 0 &&
            getpriority(PRIO_PROCESS, 0) < REAPER_NICE; /* 0: this thread */
        last_caller = caller;
    }
    return is_core;
}

static bool has_core_limit(clockid_t clock, const struct timespec *until)
{
    struct timespec now;
    if (clock_gettime(clock, &now) != 0)
        return false;
    int64_t left_us = (until->tv_sec - now.tv_sec) * 1000000LL + (until->tv_nsec - now.tv_nsec) / 1000;
    return left_us > CORE_LIMIT_US - TOLERANCE_US && left_us <= CORE_LIMIT_US;
}

int pthread_cond_clockwait(
    pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)
{
    pthread_once(&found, find_libc_wait);
    if (libc_wait == NULL) /* a C library without this function has no callers */
        return ENOSYS;
    if (!has_core_limit(clock, until) || !called_by_core(__builtin_return_address(0)))
        return libc_wait(condition, mutex, clock, until);
    struct timespec later = *until;
    if (expired >= EXPIRED_WHEN_IDLE)
        later.tv_sec += (IDLE_LIMIT_US - CORE_LIMIT_US) / 1000000;
    int code = libc_wait(condition, mutex, clock, &later);
    expired = code != ETIMEDOUT ? 0 : expired < EXPIRED_WHEN_IDLE ? expired + 1 : expired;
    return code;
}
