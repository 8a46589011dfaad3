/* Stands in for the C library: stops the clock, returns from each wait at once, and records how long it might have
 * lasted.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Whether the clock stands still, whether the next wait is notified, and the limit of the last one. */
int recorder_stops_clock, recorder_notifies;
double recorder_limit_s;

int clock_gettime(clockid_t clock, struct timespec *now)
{
    if (!recorder_stops_clock)
        return (int)syscall(SYS_clock_gettime, clock, now);
    *now = (struct timespec){.tv_sec = 1000};
    return 0;
}

int pthread_cond_clockwait(
    pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until)
{
    (void)condition;
    (void)mutex;
    struct timespec now;
    clock_gettime(clock, &now);
    recorder_limit_s = (double)(until->tv_sec - now.tv_sec) + (double)(until->tv_nsec - now.tv_nsec) / 1e9;
    return recorder_notifies ? 0 : ETIMEDOUT;
}
