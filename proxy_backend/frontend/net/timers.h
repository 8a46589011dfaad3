/* A loop's timers, in a timing wheel whose slots are lists. A timer that is set to a later time stays in its slot, and
 * moves on when that slot is due. So setting a connection's deadline for each request costs one store.
 */
#ifndef PYTRITON_FRONTEND_NET_TIMERS_H
#define PYTRITON_FRONTEND_NET_TIMERS_H

#include "net/loop.h"

enum {
    TIMER_SLOTS = 1024, /* one minute */
    /* Limit for expiring timers at once. Thousands may be due at the same tick, and each may free megabytes. In
     * between, requests get their turn.
     */
    TIMERS_AT_ONCE = 32,
};

typedef struct {
    Timer *slots[TIMER_SLOTS];
    uint64_t used[TIMER_SLOTS / 64]; /* one bit per slot that is not empty */
    uint64_t tick; /* all slots up to this tick have been handled */
    Timer *overdue;
} Timers;

void timers_begin(Timers *timers, uint64_t now_ms);
void timers_set(Timers *timers, Timer *timer, uint64_t due_ms);
void timers_clear(Timers *timers, Timer *timer);
/* Call timers that are due, at most TIMERS_AT_ONCE. While others are overdue, timers_wait returns 0. */
void timers_expire(Timers *timers, uint64_t now_ms);
/* Returns the number of milliseconds until the next timer may be due, or -1 if none is set. */
int timers_wait(const Timers *timers, uint64_t now_ms);

#endif
