#include "net/timers.h"

void timers_begin(Timers *timers, uint64_t now_ms)
{
    *timers = (Timers){.tick = now_ms / TIMER_TICK_MS};
}

static void unlink_timer(Timers *timers, Timer *timer)
{
    uint64_t slot = timer->slot_tick % TIMER_SLOTS;
    if (timer->link == NULL)
        return;
    *timer->link = timer->next;
    if (timer->next)
        timer->next->link = timer->link;
    timer->link = NULL;
    if (timers->slots[slot] == NULL)
        timers->used[slot / 64] &= ~(1ull << slot % 64);
}

static void link_timer(Timers *timers, Timer *timer, uint64_t tick)
{
    uint64_t slot = tick % TIMER_SLOTS;
    timer->slot_tick = tick;
    timer->next = timers->slots[slot];
    timer->link = &timers->slots[slot];
    if (timer->next)
        timer->next->link = &timer->next;
    timers->slots[slot] = timer;
    timers->used[slot / 64] |= 1ull << slot % 64;
}

/* The slot that is looked at when it is due; one before that, if it is far away. */
static uint64_t tick_for(const Timers *timers, uint64_t due_ms)
{
    uint64_t tick = due_ms / TIMER_TICK_MS + (due_ms % TIMER_TICK_MS != 0);
    if (tick <= timers->tick)
        return timers->tick + 1;
    return tick - timers->tick >= TIMER_SLOTS ? timers->tick + TIMER_SLOTS - 1 : tick;
}

void timers_set(Timers *timers, Timer *timer, uint64_t due_ms)
{
    uint64_t tick = tick_for(timers, due_ms);
    timer->due_ms = due_ms ? due_ms : 1;
    if (timer->link && timer->slot_tick <= tick)
        return;
    unlink_timer(timers, timer);
    link_timer(timers, timer, tick);
}

void timers_clear(Timers *timers, Timer *timer)
{
    timer->due_ms = 0;
    unlink_timer(timers, timer);
}

static void expire_slot(Timers *timers, uint64_t slot, uint64_t now_ms)
{
    Timer *due = timers->slots[slot];
    if (due == NULL)
        return;
    timers->slots[slot] = NULL;
    timers->used[slot / 64] &= ~(1ull << slot % 64);
    due->link = &due; /* each may be cleared by another one's function */
    while (due) {
        Timer *timer = due;
        due = timer->next;
        if (due)
            due->link = &due;
        timer->link = NULL;
        if (timer->due_ms > now_ms) {
            link_timer(timers, timer, tick_for(timers, timer->due_ms));
        } else {
            timer->due_ms = 0;
            timer->expired(timer);
        }
    }
}

void timers_expire(Timers *timers, uint64_t now_ms)
{
    uint64_t first = timers->tick + 1, last = now_ms / TIMER_TICK_MS;
    if (last < first)
        return;
    timers->tick = last; /* what is set from now on goes into later slots */
    if (last - first >= TIMER_SLOTS)
        first = last - TIMER_SLOTS + 1; /* it has slept for a whole turn of the wheel */
    for (uint64_t tick = first; tick <= last; tick++)
        expire_slot(timers, tick % TIMER_SLOTS, now_ms);
}

int timers_wait(const Timers *timers, uint64_t now_ms)
{
    uint64_t tick = timers->tick + 1, end = timers->tick + TIMER_SLOTS;
    while (tick < end) {
        uint64_t slot = tick % TIMER_SLOTS, used = timers->used[slot / 64] >> slot % 64;
        if (used) {
            uint64_t at_ms = (tick + (uint64_t)__builtin_ctzll(used)) * TIMER_TICK_MS;
            return at_ms > now_ms ? (int)(at_ms - now_ms) : 0;
        }
        tick += 64 - slot % 64;
    }
    return -1;
}
