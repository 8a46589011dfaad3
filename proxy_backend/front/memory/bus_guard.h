/* Memory that another process may take away while it is read: a file in /dev/shm that is cut shorter than its mapping.
 *
 * Touching what is gone is SIGBUS, which would be the process's end. Here such a mapping becomes empty memory instead: whoever shares a region and
 * takes it away gets zeros, or does not see what was written.
 */
#ifndef PYTRITON_FRONT_BUS_GUARD_H
#define PYTRITON_FRONT_BUS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* Whole pages of a file's mapping. False: there is no memory. */
bool bus_guard_add(void *start, size_t size);
/* Before it is unmapped. */
void bus_guard_remove(void *start);

#endif
