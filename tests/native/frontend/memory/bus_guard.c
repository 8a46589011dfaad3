/* A region is taken away in the moment in which another one's entry becomes that of a third: what lies between these two stays. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void looked_at(uint64_t value);
#define __atomic_load_n(where, order)                                                                                  \
    ({                                                                                                                 \
        __typeof__(*(where)) found;                                                                                    \
        __atomic_load(where, &found, order);                                                                           \
        looked_at((uint64_t)found);                                                                                    \
        found;                                                                                                         \
    })
#include "memory/bus_guard.c"

enum { LOW, BELOW, REGION, ABOVE, HIGH, PAGES };

static char *pages;
static size_t page_size;
static BusGuard *high;
static volatile bool armed; /* main and the handler of its signal */

static char *page(int number)
{
    return pages + (size_t)number * page_size;
}

static void looked_at(uint64_t value)
{
    if (!armed || value != (uint64_t)(uintptr_t)page(PAGES))
        return;
    armed = false;
    bus_guard_remove(high);
    bus_guard_add(page(LOW), page_size);
}

int main(void)
{
    page_size = (size_t)sysconf(_SC_PAGESIZE);
    pages = mmap(NULL, PAGES * page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = memfd_create("region", 0);
    if (pages == MAP_FAILED || file < 0 ||
        mmap(page(REGION), page_size, PROT_READ, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
        return 1;
    memset(page(BELOW), 'b', page_size);
    memset(page(ABOVE), 'a', page_size);
    BusGuard *region = bus_guard_add(page(REGION), page_size);
    high = bus_guard_add(page(HIGH), page_size);
    if (!region || !high || bus_guard_is_broken(region))
        return 1;
    armed = true;
    char gone = *(volatile char *)page(REGION);
    printf("%d %d %c %c %d\n", armed, gone, *page(BELOW), *page(ABOVE), bus_guard_is_broken(region));
    munmap(pages, PAGES * page_size);
    close(file);
    return 0;
}
