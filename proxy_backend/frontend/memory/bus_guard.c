#define _GNU_SOURCE
#include "memory/bus_guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The guard of one mapping. Guards are reused but never freed, because the signal handler may be reading any of them.
 */
struct BusGuard {
    BusGuard *next;
    uintptr_t start, end; /* `end` is 0 if the guard is free; it is written last, and cleared first */
    bool broken;          /* atomic */
};

static BusGuard *first;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards changes to the list; the handler only reads it */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct sigaction former;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    uintptr_t address = (uintptr_t)info->si_addr;
    int error = errno;
    for (BusGuard *one = __atomic_load_n(&first, __ATOMIC_ACQUIRE); one; one = one->next) {
        uintptr_t end = __atomic_load_n(&one->end, __ATOMIC_ACQUIRE),
                  start = __atomic_load_n(&one->start, __ATOMIC_ACQUIRE);
        /* Check that both belong to the same mapping: the guard could have been reused for another one. */
        if (address < start || address >= end || end != __atomic_load_n(&one->end, __ATOMIC_ACQUIRE))
            continue;
        /* Replace the whole mapping at once. One mapping per page could be too many. */
        void *made = mmap((void *)start, end - start, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        errno = error;
        if (made != MAP_FAILED) {
            __atomic_store_n(&one->broken, true, __ATOMIC_RELEASE);
            return;
        }
    }
    /* The address is not in a guarded mapping: call the former handler. */
    if (former.sa_flags & SA_SIGINFO)
        former.sa_sigaction(number, info, context);
    else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN)
        former.sa_handler(number);
    else
        sigaction(SIGBUS, &former, NULL); /* The access will fault again, and end the process. */
    errno = error;
}

static void install(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &former);
}

BusGuard *bus_guard_add(void *start, size_t size)
{
    pthread_once(&once, install);
    pthread_mutex_lock(&lock);
    BusGuard *one = first;
    while (one && one->end)
        one = one->next;
    bool is_new = one == NULL;
    if (is_new)
        one = calloc(1, sizeof *one);
    if (one) {
        __atomic_store_n(&one->broken, false, __ATOMIC_RELEASE);
        __atomic_store_n(&one->start, (uintptr_t)start, __ATOMIC_RELEASE);
        __atomic_store_n(&one->end, (uintptr_t)start + size, __ATOMIC_RELEASE);
    }
    if (one && is_new) {
        one->next = first;
        __atomic_store_n(&first, one, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&lock);
    return one;
}

bool bus_guard_is_broken(BusGuard *guard)
{
    return __atomic_load_n(&guard->broken, __ATOMIC_ACQUIRE);
}

void bus_guard_remove(BusGuard *guard)
{
    pthread_mutex_lock(&lock);
    __atomic_store_n(&guard->end, 0, __ATOMIC_RELEASE);
    pthread_mutex_unlock(&lock);
}
