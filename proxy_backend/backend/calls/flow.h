/* Flow control of a stream between two models: the unread part, as the producing model's proxy sees it. Both proxies
 * are in this process.
 */
#ifndef PYTRITON_BACKEND_CALLS_FLOW_H
#define PYTRITON_BACKEND_CALLS_FLOW_H

#include <stdbool.h>
#include <stdint.h>

/* Wakes a thread that polls `fd`. References are held by that thread and by the flows that it is waiting for. */
typedef struct {
    int fd; /* an eventfd */
    unsigned refs;
} Wakeup;

/* Returns NULL without memory or a descriptor. */
Wakeup *wakeup_new(void);
/* Reset the descriptor after it has become readable. */
void wakeup_reset(Wakeup *wakeup);
void wakeup_unref(Wakeup *wakeup);

typedef struct Flow Flow;

/* ── caller's side: may be called with locks held, never blocks ────────────────────────────────────────────────────────────────────────────── */

/* Returns NULL without memory or randomness. */
Flow *flow_new(void);
/* Returns the name of the flow. It cannot be guessed, so a client can reach only its own streams. */
const char *flow_name(const Flow *flow);
/* Count an answer as unread, or as read. */
void flow_add_unread(Flow *flow, uint64_t bytes);
void flow_mark_read(Flow *flow, uint64_t bytes);
/* The caller has stopped reading: the producer no longer has to wait for it. */
void flow_end(Flow *flow);

/* ── producer's side ────────────────────────────────────────────────────────────────────────────────── */

/* Returns the flow with this name and adds a reference for the caller. NULL if there is none. */
Flow *flow_find(const char *name);
/* Returns whether the producer must wait for the caller. If so, the wake-up is signalled when the caller has read. If
 * several producers wait for one flow (an ensemble merges the streams of several models), only the last one's wake-up
 * is signalled.
 */
bool flow_is_full(Flow *flow, Wakeup *wakeup);
/* Double the limit of unread bytes until the caller has caught up, because others are waiting for the producing model.
 */
void flow_raise_limit(Flow *flow);

void flow_unref(Flow *flow);

#endif
