/* The unread part of a stream between models, as its producer's proxy sees it: both proxies are in this process. */
#ifndef PYTRITON_FLOW_H
#define PYTRITON_FLOW_H

#include <stdbool.h>
#include <stdint.h>

/* Wakes a thread that polls `fd`. Held by that thread, and by the flows that it waits for. */
typedef struct {
    int fd; /* an eventfd */
    unsigned refs;
} Bell;

/* NULL: there is no memory, or no descriptor. */
Bell *bell_new(void);
/* Silence the bell: it has been heard. */
void bell_hush(Bell *bell);
void bell_unref(Bell *bell);

typedef struct Flow Flow;

/* ── for the caller's side ──────────────────────────────────────────────────────────────────────────
 * It may hold locks: nothing here waits.
 */

/* NULL: there is no memory, or no randomness. */
Flow *flow_new(void);
/* A name that nobody can guess: a client reaches only its own streams. */
const char *flow_name(const Flow *flow);
/* Count an answer as unread; and as read. */
void flow_put(Flow *flow, uint64_t bytes);
void flow_take(Flow *flow, uint64_t bytes);
/* The caller reads no more: the producer need not wait. */
void flow_end(Flow *flow);

/* ── for the side that makes the answers ────────────────────────────────────────────────────────────── */

/* The flow of that name, with a reference for the caller; NULL: there is none. */
Flow *flow_find(const char *name);
/* Whether the caller has to read first. Then the bell rings when it has; several may wait for one flow (an ensemble makes
 * streams of several models one), and only the last one's bell does. */
bool flow_is_full(Flow *flow, Bell *bell);
/* Let twice as much be unread until the caller has caught up: others wait for the model that makes the answers. */
void flow_widen(Flow *flow);

void flow_unref(Flow *flow);

#endif
