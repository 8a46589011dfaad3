/* Clocks. */
#ifndef PYTRITON_BACKEND_BASE_CLOCK_H
#define PYTRITON_BACKEND_BASE_CLOCK_H

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC, which tritonserver uses for its statistics. */
uint64_t clock_monotonic_ns(void);
/* Nanoseconds since 1970. */
uint64_t clock_realtime_ns(void);

#endif
