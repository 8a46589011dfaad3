/* Memory that another process may take away while it is read: a file in /dev/shm that is cut shorter than its mapping.
 *
 * Touching what is gone is SIGBUS, which would be the process's end. Here such a mapping becomes empty memory instead, and is broken from then on.
 */
#ifndef PYTRITON_FRONT_BUS_GUARD_H
#define PYTRITON_FRONT_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

typedef struct BusGuard BusGuard;

/* Guard whole pages of a file's mapping. NULL: there is no memory. */
BusGuard *bus_guard_add(void *start, size_t size);
/* Whether something was touched that was gone, so that the mapping is not the file's any more. */
bool bus_guard_is_broken(BusGuard *guard);
/* Before it is unmapped. */
void bus_guard_remove(BusGuard *guard);

#endif
