/* A thread that waits for sockets (epoll), for times, and for tasks that other threads give it. Nothing in it polls.
 *
 * A connection belongs to one loop for its life, and its protocol runs in that loop's thread, but where something else is said.
 */
#ifndef PYTRITON_FRONT_LOOP_H
#define PYTRITON_FRONT_LOOP_H

#include "base/problem.h"

typedef struct Loop Loop;

/* Something for the loop's thread to do. It lies in what it is about, and is the caller's again as soon as `run` is called. */
typedef struct Task {
    struct Task *next; /* loop.c's */
    void (*run)(struct Task *task);
} Task;

/* A time to be called at, as coarse as TIMER_TICK_MS. All zero, but for `expired`, is one that is not set. To set it again to a
 * later time is a store. The loop's thread only. */
enum { TIMER_TICK_MS = 64 };
typedef struct Timer {
    struct Timer *next, **link; /* timers.c's; `link` NULL: it lies in no slot */
    uint64_t due_ms;            /* 0: it is not set */
    uint64_t slot_tick;
    void (*expired)(struct Timer *timer);
} Timer;

/* A descriptor that the loop looks at. It must not go before loop_unwatch. */
typedef struct Watch {
    int fd;
    void (*ready)(struct Watch *watch, uint32_t events);
} Watch;

/* What other rooms keep for each loop, such as their pools of calls: one pointer each. */
typedef enum { LOOP_CONNECTIONS, LOOP_CALLS, LOOP_HTTP, LOOP_GRPC, LOOP_ADMIN, LOOP_SLOTS } LoopSlot;

Loop *loop_new(Problem *problem);
/* Begin its thread, whose name is at most 15 bytes. */
bool loop_start(Loop *loop, const char *name, Problem *problem);
/* Be its thread, until loop_stop: for tests. */
void loop_run(Loop *loop);
/* Have it end after what it is at, and the tasks that it has been given before. Any thread. */
void loop_stop(Loop *loop);
/* Wait for the thread's end. */
void loop_join(Loop *loop);
/* After its end: tasks that came later are run here; then what loop_keep was given is released. */
void loop_free(Loop *loop);

/* Have the loop's thread run a task, soon and after those that were given before. Any thread, the loop's own as well. A task may be
 * given again once it runs, not before. */
void loop_post(Loop *loop, Task *task);
/* Whether the caller is the loop's thread. */
bool loop_is_here(const Loop *loop);

/* clock_ms() of this turn, without a system call. The loop's thread only, as all that follows. */
uint64_t loop_now_ms(const Loop *loop);
void loop_set_timer(Loop *loop, Timer *timer, uint64_t due_ms);
void loop_clear_timer(Loop *loop, Timer *timer);

/* Events of epoll(7). False: the kernel has no memory for it, or errno says what. */
bool loop_watch(Loop *loop, Watch *watch, uint32_t events);
bool loop_rewatch(Loop *loop, Watch *watch, uint32_t events);
/* It is not called any more, not in this turn either. */
void loop_unwatch(Loop *loop, Watch *watch);

/* Room to read into that is nobody's between two calls. */
enum { LOOP_SCRATCH = 64 << 10 };
char *loop_scratch(Loop *loop);

void loop_keep(Loop *loop, LoopSlot slot, void *kept, void (*release)(void *kept));
/* NULL: nothing has been kept. */
void *loop_kept(const Loop *loop, LoopSlot slot);

#endif
