/* A thread that waits for sockets (epoll), timers, and tasks from other threads. It never polls. A connection belongs
 * to one loop for its life, and its protocol runs in that loop's thread unless stated otherwise.
 */
#ifndef PYTRITON_FRONTEND_NET_LOOP_H
#define PYTRITON_FRONTEND_NET_LOOP_H

#include "base/problem.h"

typedef struct Loop Loop;

/* Work for the loop's thread. It is embedded in the object it is about, and belongs to the caller again as soon as
 * `run` is called.
 */
typedef struct Task {
    struct Task *next; /* loop.c's */
    void (*run)(struct Task *task);
} Task;

/* A timer with the resolution TIMER_TICK_MS. It is not set if all fields but `expired` are zero. Setting it to a
 * later time is a store. The loop's thread only.
 */
enum { TIMER_TICK_MS = 64 };
typedef struct Timer {
    struct Timer *next, **link; /* timers.c's; `link` NULL: in no slot */
    uint64_t due_ms;            /* 0: not set */
    uint64_t slot_tick;
    void (*expired)(struct Timer *timer);
} Timer;

/* A watched descriptor. It must stay until loop_unwatch. */
typedef struct Watch {
    int fd;
    void (*ready)(struct Watch *watch, uint32_t events);
} Watch;

/* Data that other modules keep per loop, such as their pools of calls: one pointer each. */
typedef enum { LOOP_CONNECTIONS, LOOP_CALLS, LOOP_HTTP, LOOP_GRPC, LOOP_ADMIN, LOOP_SLOTS } LoopSlot;

Loop *loop_new(Problem *problem);
/* Start its thread, whose name has at most 15 bytes. */
bool loop_start(Loop *loop, const char *name, Problem *problem);
/* Run the loop in the calling thread until loop_stop: for tests. */
void loop_run(Loop *loop);
/* Stop it after the current work and the tasks posted before. Any thread. */
void loop_stop(Loop *loop);
/* Wait for the thread's end. */
void loop_join(Loop *loop);
/* After its end: run tasks that were posted later, then release what loop_set_slot was given. */
void loop_free(Loop *loop);

/* Run a task in the loop's thread, soon and after those posted before. Any thread, including the loop's own. A task
 * may be posted again once it runs, not before.
 */
void loop_post(Loop *loop, Task *task);
/* Returns whether the caller is the loop's thread. */
bool loop_is_here(const Loop *loop);

/* Returns clock_ms() of this turn, without a system call. Like everything below, only in the loop's thread. */
uint64_t loop_now_ms(const Loop *loop);
void loop_set_timer(Loop *loop, Timer *timer, uint64_t due_ms);
void loop_clear_timer(Loop *loop, Timer *timer);

/* Watch for events of epoll(7). Returns false with errno, for example if the kernel has no memory. */
bool loop_watch(Loop *loop, Watch *watch, uint32_t events);
bool loop_rewatch(Loop *loop, Watch *watch, uint32_t events);
/* It is not called any more, not even in this turn. */
void loop_unwatch(Loop *loop, Watch *watch);

/* A shared read buffer, free between two calls. */
enum { LOOP_SCRATCH = 64 << 10 };
char *loop_scratch(Loop *loop);

void loop_set_slot(Loop *loop, LoopSlot slot, void *kept, void (*release)(void *kept));
/* NULL: nothing has been kept. */
void *loop_slot(const Loop *loop, LoopSlot slot);

#endif
