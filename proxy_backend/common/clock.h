/* Clocks. */
#ifndef PYTRITON_COMMON_CLOCK_H
#define PYTRITON_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Returns nanoseconds of CLOCK_MONOTONIC, the clock of tritonserver's statistics. */
static inline uint64_t clock_ns(void)
{
    return clock_read_ns(CLOCK_MONOTONIC);
}

/* Returns milliseconds of CLOCK_MONOTONIC. */
static inline uint64_t clock_ms(void)
{
    return clock_ns() / 1000000u;
}

/* Returns nanoseconds since 1970. */
static inline uint64_t clock_realtime_ns(void)
{
    return clock_read_ns(CLOCK_REALTIME);
}

#endif
