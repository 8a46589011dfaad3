/* The memory available on this machine and to this process's control groups. */
#ifndef PYTRITON_BACKEND_BASE_AVAILABLE_MEMORY_H
#define PYTRITON_BACKEND_BASE_AVAILABLE_MEMORY_H

#include <stdint.h>

/* Returns the bytes that can be used before the kernel kills processes: with overcommit, allocations do not fail. */
uint64_t memory_available(void);
/* Returns NULL if this process may take so much memory, else the reason against it, for free(). */
char *memory_check(uint64_t size);
/* Available memory is checked only once per this many bytes. */
extern const uint64_t memory_check_interval;

#endif
