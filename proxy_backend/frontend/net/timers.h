/* A loop's timers: a wheel of slots, each a list. A timer that is set to a later time stays in its slot, and moves on
 * when that slot is due: so a connection's deadline costs one store per request.
 */
#ifndef PYTRITON_FRONTEND_NET_TIMERS_H
#define PYTRITON_FRONTEND_NET_TIMERS_H

#include "net/loop.h"

enum {
    TIMER_SLOTS = 1024, /* a minute */
    /* Thousands may be due in one tick, and each may free megabytes: give requests their turn in between. */
    TIMERS_AT_ONCE = 32,
};

typedef struct {
    Timer *slots[TIMER_SLOTS];
    uint64_t used[TIMER_SLOTS / 64]; /* which slots are not empty */
    uint64_t tick; /* all slots up to this one are done or overdue */
    Timer *overdue;
} Timers;

void timers_begin(Timers *timers, uint64_t now_ms);
void timers_set(Timers *timers, Timer *timer, uint64_t due_ms);
void timers_clear(Timers *timers, Timer *timer);
/* Call the timers that are due, at most TIMERS_AT_ONCE: while others are overdue, timers_wait returns 0. */
void timers_expire(Timers *timers, uint64_t now_ms);
/* Returns the milliseconds until there may be something to do; -1: nothing is set. */
int timers_wait(const Timers *timers, uint64_t now_ms);

#endif
