/* Thousands of timers that are set, moved and cleared at random, in a time of its own: it goes as far as the wheel says that nothing is to be done.
 * The argument is the seed. It writes how many were called, how many too early or too late, and how many are left at the end;
 * and at most how many were called at once, when all were due.
 */
#include "net/timers.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 3000, ROUNDS = 20000, LATE_MS = 2 * TIMER_TICK_MS };

static Timers wheel;
static Timer timers[COUNT];
static uint64_t due[COUNT], now_ms = 123456;
static int called, early, late, unset, at_once;

static void set(int which, uint64_t after_ms)
{
    due[which] = now_ms + after_ms;
    timers_set(&wheel, &timers[which], due[which]);
}

static void expired(Timer *timer)
{
    int which = (int)(timer - timers);
    called++;
    unset += due[which] == 0;
    early += now_ms < due[which];
    late += now_ms > due[which] + LATE_MS;
    due[which] = 0;
    if (rand() % 4 == 0)
        set(which, (uint64_t)(rand() % 1000));
    int other = rand() % COUNT; /* perhaps one of the same slot */
    if (rand() % 4 == 0) {
        due[other] = 0;
        timers_clear(&wheel, &timers[other]);
    }
}

static void change_some(void)
{
    for (int i = 0; i < 5; i++) {
        int which = rand() % COUNT;
        if (rand() % 5 == 0) {
            due[which] = 0;
            timers_clear(&wheel, &timers[which]);
        } else {
            set(which, (uint64_t)(rand() % (rand() % 10 ? 2000 : 200000))); /* some further than the wheel goes */
        }
    }
}

/* All at the same time: how many calls of timers_expire it takes, each with so many at most. */
static int expire_all_at_once(void)
{
    int calls = 0;
    for (int which = 0; which < COUNT; which++)
        set(which, 1);
    now_ms += LATE_MS;
    while (timers_wait(&wheel, now_ms) == 0) {
        int before = called;
        timers_expire(&wheel, now_ms);
        at_once = called - before > at_once ? called - before : at_once;
        calls++;
    }
    return calls;
}

int main(int count, char **arguments)
{
    srand((unsigned)atoi(count > 1 ? arguments[1] : "1"));
    timers_begin(&wheel, now_ms);
    for (int i = 0; i < COUNT; i++)
        timers[i].expired = expired;
    for (int round = 0; round < ROUNDS || timers_wait(&wheel, now_ms) >= 0; round++) {
        if (round < ROUNDS)
            change_some();
        int wait_ms = timers_wait(&wheel, now_ms);
        if (wait_ms >= 0)
            now_ms += round < ROUNDS && rand() % 3 ? (uint64_t)(rand() % (wait_ms + 1)) : (uint64_t)wait_ms;
        timers_expire(&wheel, now_ms);
    }
    bool several = expire_all_at_once() > 2;
    while (timers_wait(&wheel, now_ms) >= 0)
        timers_expire(&wheel, now_ms += (uint64_t)timers_wait(&wheel, now_ms));
    int left = 0;
    for (int i = 0; i < COUNT; i++)
        left += due[i] != 0 || timers[i].link != NULL;
    printf("called %s, early %d, late %d, unset %d, left %d\n", called > ROUNDS ? "many" : "few", early, late, unset,
        left);
    printf("all at once: %d at most in each of %s calls\n", at_once, several ? "several" : "two");
    return 0;
}
