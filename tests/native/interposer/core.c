/* Stands in for Triton's core: waits as its schedulers do. */
#define _GNU_SOURCE
#include <pthread.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

/* Wait so many milliseconds for a notification, and return the code of the C library. */
int core_wait(int limit_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += limit_ms / 1000;
    until.tv_nsec += limit_ms % 1000 * 1000000L;
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000L;
    }
    pthread_mutex_lock(&lock);
    int code = pthread_cond_clockwait(&changed, &lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&lock);
    return code;
}
