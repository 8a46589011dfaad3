/* Times of a loop: a wheel of slots, each a list. A timer that is set to a later time stays in its slot, and moves on when that one's time comes: so
 * a connection's deadline costs a store per request.
 */
#ifndef PYTRITON_FRONT_TIMERS_H
#define PYTRITON_FRONT_TIMERS_H

#include "net/loop.h"

enum {
    TIMER_SLOTS = 1024, /* a minute */
    /* Thousands may be due in one tick, and each may free megabytes: requests have their turn in between. */
    TIMERS_AT_ONCE = 32,
};

typedef struct {
    Timer *slots[TIMER_SLOTS];
    uint64_t used[TIMER_SLOTS / 64]; /* which slots are not empty */
    uint64_t tick; /* all slots up to this one's have had their time, or are overdue */
    Timer *overdue;
} Timers;

void timers_begin(Timers *timers, uint64_t now_ms);
void timers_set(Timers *timers, Timer *timer, uint64_t due_ms);
void timers_clear(Timers *timers, Timer *timer);
/* Call those whose time has come, TIMERS_AT_ONCE at most: as long as others are overdue, timers_wait returns 0. */
void timers_expire(Timers *timers, uint64_t now_ms);
/* Milliseconds until there may be something to do; -1: nothing is set. */
int timers_wait(const Timers *timers, uint64_t now_ms);

#endif
