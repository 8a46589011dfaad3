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

/* A stream is full when at least two answers with this many bytes in total are unread, so the model can produce one
 * while the caller reads the other. It is writable again at half of the limit. Each answer counts as PART_BYTES in
 * addition to its contents.
 */
enum { MIN_PARTS = 2, PART_BYTES = 1 << 11, RANDOM = 16 };
static const uint64_t max_bytes = 1 << 24;

struct Flow {
    Flow *next;
    char name[2 * RANDOM + 1];
    unsigned refs;
    pthread_mutex_t lock; /* guards the fields below */
    uint64_t parts, bytes, limit;
    bool full, ended;
    Wakeup *wakeup; /* of the thread that waits for the caller */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Flow *flows;

/* ── wake-ups ──────────────────────────────────────────────────────────────────────────────────────── */

Wakeup *wakeup_new(void)
{
    Wakeup *wakeup = calloc(1, sizeof *wakeup);
    if (wakeup == NULL)
        return NULL;
    wakeup->refs = 1;
    wakeup->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wakeup->fd >= 0)
        return wakeup;
    free(wakeup);
    return NULL;
}

void wakeup_reset(Wakeup *wakeup)
{
    uint64_t count;
    while (read(wakeup->fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
}

static void wakeup_signal(Wakeup *wakeup)
{
    uint64_t once = 1;
    while (write(wakeup->fd, &once, sizeof once) < 0 && errno == EINTR)
        ;
}

void wakeup_unref(Wakeup *wakeup)
{
    if (wakeup == NULL || __atomic_sub_fetch(&wakeup->refs, 1, __ATOMIC_ACQ_REL))
        return;
    close(wakeup->fd);
    free(wakeup);
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
    flow->limit = max_bytes;
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

/* The caller holds the flow's lock. */
static void update_full(Flow *flow)
{
    if (flow->bytes <= max_bytes / 2)
        flow->limit = max_bytes;
    flow->full =
        !flow->ended && flow->parts >= MIN_PARTS && flow->bytes >= (flow->full ? flow->limit / 2 : flow->limit);
    if (flow->full || flow->wakeup == NULL)
        return;
    wakeup_signal(flow->wakeup);
    wakeup_unref(flow->wakeup);
    flow->wakeup = NULL;
}

void flow_add_unread(Flow *flow, uint64_t bytes)
{
    pthread_mutex_lock(&flow->lock);
    flow->parts++;
    flow->bytes += bytes + PART_BYTES;
    update_full(flow);
    pthread_mutex_unlock(&flow->lock);
}

void flow_mark_read(Flow *flow, uint64_t bytes)
{
    pthread_mutex_lock(&flow->lock);
    flow->parts--;
    flow->bytes -= bytes + PART_BYTES;
    update_full(flow);
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
    update_full(flow);
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

bool flow_is_full(Flow *flow, Wakeup *wakeup)
{
    pthread_mutex_lock(&flow->lock);
    bool full = flow->full;
    if (full && flow->wakeup != wakeup) {
        wakeup_unref(flow->wakeup);
        __atomic_add_fetch(&wakeup->refs, 1, __ATOMIC_RELAXED);
        flow->wakeup = wakeup;
    }
    pthread_mutex_unlock(&flow->lock);
    return full;
}

void flow_raise_limit(Flow *flow)
{
    pthread_mutex_lock(&flow->lock);
    flow->limit *= 2;
    flow->full = flow->full && flow->bytes >= flow->limit;
    update_full(flow);
    pthread_mutex_unlock(&flow->lock);
}

void flow_unref(Flow *flow)
{
    if (flow == NULL || __atomic_sub_fetch(&flow->refs, 1, __ATOMIC_ACQ_REL))
        return;
    wakeup_unref(flow->wakeup);
    pthread_mutex_destroy(&flow->lock);
    free(flow);
}
