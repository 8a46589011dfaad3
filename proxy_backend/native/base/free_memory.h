/* The memory that is left on this machine, and to this process's control groups. */
#ifndef PYTRITON_FREE_MEMORY_H
#define PYTRITON_FREE_MEMORY_H

#include <stdint.h>

/* Bytes that can be taken before the kernel kills processes: where memory ends, allocations do not fail. */
uint64_t available_memory(void);
/* Returns NULL if this process may take so much memory, else the reason against it, for free(). */
char *memory_refused(uint64_t size);
/* The memory that is left is looked at only after pieces of this size together. */
extern const uint64_t worth_a_look;

#endif
