/* Protects against memory that disappears: if a file in /dev/shm is truncated while it is mapped, access to the
 * missing part raises SIGBUS, which would end the process. Instead, the whole mapping is replaced by empty memory, and
 * counts as broken from then on.
 */
#ifndef PYTRITON_FRONTEND_MEMORY_BUS_GUARD_H
#define PYTRITON_FRONTEND_MEMORY_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct BusGuard BusGuard;

/* Guard the mapping of whole pages of a file. Returns NULL without memory. */
BusGuard *bus_guard_add(void *start, size_t size);
/* Returns whether a missing part was accessed, so that the mapping no longer shows the file. */
bool bus_guard_is_broken(BusGuard *guard);
/* Remove the guard. Must be called before unmapping. */
void bus_guard_remove(BusGuard *guard);

#endif
