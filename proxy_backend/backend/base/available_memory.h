/* Memory that is available on this machine and to this process's control groups. */
#ifndef PYTRITON_BACKEND_BASE_AVAILABLE_MEMORY_H
#define PYTRITON_BACKEND_BASE_AVAILABLE_MEMORY_H

#include <stdint.h>

/* Returns how many bytes can be allocated before the kernel kills processes. With overcommit, allocations themselves
 * do not fail.
 */
uint64_t memory_available(void);
/* Returns NULL if this process may allocate `size` bytes, otherwise the reason why not, for free(). */
char *memory_check(uint64_t size);
/* Number of bytes after which available memory is checked again. */
extern const uint64_t memory_check_interval;

#endif
