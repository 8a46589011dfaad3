/* An event loop: a thread that waits for sockets (epoll), timers, and tasks from other threads. It never polls. A
 * connection belongs to the same loop for its whole life, and its protocol runs in that loop's thread unless stated
 * otherwise.
 */
#ifndef PYTRITON_FRONTEND_NET_LOOP_H
#define PYTRITON_FRONTEND_NET_LOOP_H

#include "base/problem.h"

typedef struct Loop Loop;

/* Work for a loop's thread. It is part of the object that it is about. The caller may use it again as soon as `run`
 * has been called.
 */
typedef struct Task {
    struct Task *next; /* used by loop.c */
    void (*run)(struct Task *task);
} Task;

/* A timer with a resolution of TIMER_TICK_MS. If all fields but `expired` are zero, it is not set. Setting it to a
 * later time costs one store. Only for the loop's thread.
 */
enum { TIMER_TICK_MS = 64 };
typedef struct Timer {
    struct Timer *next, **link; /* used by timers.c; `link` is NULL if it is not in a slot */
    uint64_t due_ms;            /* 0 if it is not set */
    uint64_t slot_tick;
    void (*expired)(struct Timer *timer);
} Timer;

/* A watched descriptor. It must stay valid until loop_unwatch. */
typedef struct Watch {
    int fd;
    void (*ready)(struct Watch *watch, uint32_t events);
} Watch;

/* Data that other modules have in each loop: one pointer each. */
typedef enum { LOOP_CONNECTIONS, LOOP_HTTP, LOOP_SLOTS } LoopSlot;

Loop *loop_new(Problem *problem);
/* Start the loop's thread. Its name can have at most 15 bytes. */
bool loop_start(Loop *loop, const char *name, Problem *problem);
/* Run the loop in the calling thread until loop_stop. For tests. */
void loop_run(Loop *loop);
/* Stop the loop after its current work and the tasks that were posted before. Any thread. */
void loop_stop(Loop *loop);
/* Wait until the loop's thread has ended. */
void loop_join(Loop *loop);
/* Free a loop that has ended. Runs tasks that were posted too late, and releases the values of loop_set_slot. */
void loop_free(Loop *loop);

/* Run a task in the loop's thread, soon, and after those posted before. Any thread, including the loop's. The task
 * must not be posted again before it runs.
 */
void loop_post(Loop *loop, Task *task);
/* Returns whether the caller is the loop's thread. */
bool loop_is_here(const Loop *loop);

/* Returns the value of clock_ms() in this turn, without a system call. This and the functions below may be called only
 * in the loop's thread.
 */
uint64_t loop_now_ms(const Loop *loop);
void loop_set_timer(Loop *loop, Timer *timer, uint64_t due_ms);
void loop_clear_timer(Loop *loop, Timer *timer);

/* Watch a descriptor for events of epoll(7). Returns false with errno, for example if the kernel lacks memory. */
bool loop_watch(Loop *loop, Watch *watch, uint32_t events);
bool loop_rewatch(Loop *loop, Watch *watch, uint32_t events);
/* Stop watching. The callback is not called any more, not even in this turn. */
void loop_unwatch(Loop *loop, Watch *watch);

/* A read buffer that all connections of the loop share. Its contents are lost when the callback returns. */
enum { LOOP_SCRATCH = 64 << 10 };
char *loop_scratch(Loop *loop);

void loop_set_slot(Loop *loop, LoopSlot slot, void *kept, void (*release)(void *kept));
/* Returns the value of loop_set_slot, or NULL. */
void *loop_slot(const Loop *loop, LoopSlot slot);

#endif
