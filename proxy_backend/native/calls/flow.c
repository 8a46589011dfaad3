#define _GNU_SOURCE
#include "calls/flow.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

/* A stream is full with this many unread bytes in at least two answers, so that one is read while the next is made.
 * It reopens at half of that. Each answer itself counts PART_BYTES.
 */
enum { LEAST_PARTS = 2, PART_BYTES = 1 << 11, RANDOM = 16 };
static const uint64_t most_bytes = 1 << 24;

struct Flow {
    Flow *next;
    char name[2 * RANDOM + 1];
    unsigned refs;
    pthread_mutex_t lock; /* guards the rest */
    uint64_t parts, bytes, most;
    bool full, ended;
    Bell *bell; /* the waiting thread's */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Flow *flows;

/* ── bells ──────────────────────────────────────────────────────────────────────────────────────── */

Bell *bell_new(void)
{
    Bell *bell = calloc(1, sizeof *bell);
    if (bell == NULL)
        return NULL;
    bell->refs = 1;
    bell->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (bell->fd >= 0)
        return bell;
    free(bell);
    return NULL;
}

void bell_hush(Bell *bell)
{
    uint64_t count;
    while (read(bell->fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

static void ring(Bell *bell)
{
    uint64_t once = 1;
    while (write(bell->fd, &once, sizeof once) < 0 && errno == EINTR)
        ;
}

void bell_unref(Bell *bell)
{
    if (bell == NULL || __atomic_sub_fetch(&bell->refs, 1, __ATOMIC_ACQ_REL))
        return;
    close(bell->fd);
    free(bell);
}

/* ── flows ──────────────────────────────────────────────────────────────────────────────────────── */

Flow *flow_new(void)
{
    uint8_t random[RANDOM];
    Flow *flow = getrandom(random, sizeof random, 0) == sizeof random ? calloc(1, sizeof *flow) : NULL;
    if (flow == NULL)
        return NULL;
    for (size_t i = 0; i < RANDOM; i++)
        snprintf(flow->name + 2 * i, 3, "%02x", random[i]);
    flow->refs = 1;
    flow->most = most_bytes;
    pthread_mutex_init(&flow->lock, NULL);
    pthread_mutex_lock(&lock);
    flow->next = flows;
    flows = flow;
    pthread_mutex_unlock(&lock);
    return flow;
}

const char *flow_name(const Flow *flow)
{
    return flow->name;
}

/* With the lock of the flow held. */
static void look(Flow *flow)
{
    if (flow->bytes <= most_bytes / 2)
        flow->most = most_bytes;
    flow->full =
        !flow->ended && flow->parts >= LEAST_PARTS && flow->bytes >= (flow->full ? flow->most / 2 : flow->most);
    if (flow->full || flow->bell == NULL)
        return;
    ring(flow->bell);
    bell_unref(flow->bell);
    flow->bell = NULL;
}

void flow_put(Flow *flow, uint64_t bytes)
{
    pthread_mutex_lock(&flow->lock);
    flow->parts++;
    flow->bytes += bytes + PART_BYTES;
    look(flow);
    pthread_mutex_unlock(&flow->lock);
}

void flow_take(Flow *flow, uint64_t bytes)
{
    pthread_mutex_lock(&flow->lock);
    flow->parts--;
    flow->bytes -= bytes + PART_BYTES;
    look(flow);
    pthread_mutex_unlock(&flow->lock);
}

void flow_end(Flow *flow)
{
    pthread_mutex_lock(&lock);
    Flow **at = &flows;
    while (*at && *at != flow)
        at = &(*at)->next;
    if (*at)
        *at = flow->next;
    pthread_mutex_unlock(&lock);
    pthread_mutex_lock(&flow->lock);
    flow->ended = true;
    look(flow);
    pthread_mutex_unlock(&flow->lock);
}

Flow *flow_find(const char *name)
{
    pthread_mutex_lock(&lock);
    Flow *flow = flows;
    while (flow && strcmp(flow->name, name) != 0)
        flow = flow->next;
    if (flow)
        __atomic_add_fetch(&flow->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&lock);
    return flow;
}

bool flow_is_full(Flow *flow, Bell *bell)
{
    pthread_mutex_lock(&flow->lock);
    bool full = flow->full;
    if (full && flow->bell != bell) {
        bell_unref(flow->bell);
        __atomic_add_fetch(&bell->refs, 1, __ATOMIC_RELAXED);
        flow->bell = bell;
    }
    pthread_mutex_unlock(&flow->lock);
    return full;
}

void flow_widen(Flow *flow)
{
    pthread_mutex_lock(&flow->lock);
    flow->most *= 2;
    flow->full = flow->full && flow->bytes >= flow->most;
    look(flow);
    pthread_mutex_unlock(&flow->lock);
}

void flow_unref(Flow *flow)
{
    if (flow == NULL || __atomic_sub_fetch(&flow->refs, 1, __ATOMIC_ACQ_REL))
        return;
    bell_unref(flow->bell);
    pthread_mutex_destroy(&flow->lock);
    free(flow);
}
