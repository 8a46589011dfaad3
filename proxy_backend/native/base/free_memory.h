/* How much memory is left, on this machine and to this process's control groups. */
#ifndef PYTRITON_FREE_MEMORY_H
#define PYTRITON_FREE_MEMORY_H

#include <stdint.h>

/* Bytes that can be taken before the kernel kills processes: no allocation fails where memory ends. */
uint64_t available_memory(void);
/* Why a piece of memory of this process must not be had, for free(); NULL: it may. */
char *memory_refused(uint64_t size);
/* Pieces that come to less than this together are not worth a look at the memory that is left. */
extern const uint64_t worth_a_look;

#endif
