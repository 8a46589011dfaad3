/* The unread part of a stream between models, as seen by its producer's proxy. Both proxies are in this process. */
#ifndef PYTRITON_BACKEND_CALLS_FLOW_H
#define PYTRITON_BACKEND_CALLS_FLOW_H

#include <stdbool.h>
#include <stdint.h>

/* Wakes a thread that polls `fd`. That thread and the flows it waits for hold references. */
typedef struct {
    int fd; /* an eventfd */
    unsigned refs;
} Wakeup;

/* NULL without memory or a descriptor. */
Wakeup *wakeup_new(void);
/* Clear the wake-up after it has fired. */
void wakeup_reset(Wakeup *wakeup);
void wakeup_unref(Wakeup *wakeup);

typedef struct Flow Flow;

/* ── caller's side: may be called with locks held, never blocks ────────────────────────────────────────────────────────────────────────────── */

/* NULL without memory or randomness. */
Flow *flow_new(void);
/* Returns an unguessable name, so that a client reaches only its own streams. */
const char *flow_name(const Flow *flow);
/* Count an answer as unread, or as read. */
void flow_add_unread(Flow *flow, uint64_t bytes);
void flow_mark_read(Flow *flow, uint64_t bytes);
/* The caller reads no more: do not let the producer wait. */
void flow_end(Flow *flow);

/* ── producer's side ────────────────────────────────────────────────────────────────────────────────── */

/* Returns the flow of that name with a reference for the caller; NULL if there is none. */
Flow *flow_find(const char *name);
/* Returns whether the producer has to wait for the caller. If so, the wake-up fires when the caller has read. Several
 * producers may wait for one flow (an ensemble merges the streams of several models); only the last one's wake-up fires.
 */
bool flow_is_full(Flow *flow, Wakeup *wakeup);
/* Double the limit of unread bytes until the caller has caught up, because others wait for the producing model. */
void flow_raise_limit(Flow *flow);

void flow_unref(Flow *flow);

#endif
