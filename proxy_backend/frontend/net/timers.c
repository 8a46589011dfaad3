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

/* Returns the tick whose slot should contain a timer: when it is due, or earlier if that is far in the future. */
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

/* Move a slot's timers to the overdue ones. There must be none of these. */
static void take_slot(Timers *timers, uint64_t slot)
{
    timers->overdue = timers->slots[slot];
    if (timers->overdue)
        timers->overdue->link = &timers->overdue; /* A timer may be cleared by another one's callback. */
    timers->slots[slot] = NULL;
    timers->used[slot / 64] &= ~(1ull << slot % 64);
}

static void expire_first(Timers *timers, uint64_t now_ms)
{
    Timer *timer = timers->overdue;
    timers->overdue = timer->next;
    if (timer->next)
        timer->next->link = &timers->overdue;
    timer->link = NULL;
    if (timer->due_ms > now_ms) {
        link_timer(timers, timer, tick_for(timers, timer->due_ms));
    } else {
        timer->due_ms = 0;
        timer->expired(timer);
    }
}

void timers_expire(Timers *timers, uint64_t now_ms)
{
    uint64_t last = now_ms / TIMER_TICK_MS;
    if (last > timers->tick + TIMER_SLOTS)
        timers->tick = last - TIMER_SLOTS; /* The loop has been asleep for longer than a whole turn of the wheel. */
    for (int called = 0; called < TIMERS_AT_ONCE;) {
        if (timers->overdue) {
            expire_first(timers, now_ms);
            called++;
        } else if (timers->tick < last) {
            timers->tick++;
            take_slot(timers, timers->tick % TIMER_SLOTS);
        } else {
            return;
        }
    }
}

int timers_wait(const Timers *timers, uint64_t now_ms)
{
    if (timers->overdue)
        return 0;
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
