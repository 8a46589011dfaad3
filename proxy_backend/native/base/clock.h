/* Clocks. */
#ifndef PYTRITON_CLOCK_H
#define PYTRITON_CLOCK_H

#include <stdint.h>

/* Nanoseconds of CLOCK_MONOTONIC, which tritonserver uses for its statistics. */
uint64_t steady_ns(void);
/* Nanoseconds since 1970. */
uint64_t epoch_ns(void);

#endif
