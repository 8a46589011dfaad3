/* Guards memory that another process may remove during access: a file in /dev/shm that is truncated below its
 * mapping. Accessing the missing part raises SIGBUS, which would end the process. Here, such a mapping is replaced
 * with empty memory, and is broken from then on.
 */
#ifndef PYTRITON_FRONTEND_MEMORY_BUS_GUARD_H
#define PYTRITON_FRONTEND_MEMORY_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct BusGuard BusGuard;

/* Guard whole pages of a file's mapping. NULL without memory. */
BusGuard *bus_guard_add(void *start, size_t size);
/* Returns whether a missing part was accessed, so that the mapping is no longer the file's. */
bool bus_guard_is_broken(BusGuard *guard);
/* Call before unmapping. */
void bus_guard_remove(BusGuard *guard);

#endif
