#define _GNU_SOURCE
#include "net/loop.h"
#include "common/clock.h"
#include "net/timers.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { EVENTS = 64 };

struct Loop {
    int epoll;
    int bell; /* an eventfd that is never read, since each write causes an event */
    _Atomic(Task *) tasks; /* the most recently posted task comes first */
    atomic_bool asleep;    /* a thread that posts a task has to write to the eventfd */
    atomic_bool stopping;
    pthread_t thread;
    uint64_t now_ms;
    int event, event_count; /* the event of this turn that is being handled */
    struct epoll_event events[EVENTS];
    struct {
        void *data;
        void (*release)(void *data);
    } slot_data[LOOP_SLOTS];
    Timers timers;
    char scratch[LOOP_SCRATCH];
};

/* The loop that runs in this thread. */
static __thread const Loop *current_loop;

/* Abort programs built with sanitizers (tests) if another thread uses the timers, which would corrupt them. */
static void check_is_here(const Loop *loop)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    if (current_loop != loop) {
        fprintf(stderr, "a thread other than the loop's sets one of its timers\n");
        abort();
    }
#else
    (void)loop;
#endif
}

Loop *loop_new(Problem *problem)
{
    Loop *loop = calloc(1, sizeof *loop);
    if (loop == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    struct epoll_event rings = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (loop->epoll < 0 || loop->bell < 0 || epoll_ctl(loop->epoll, EPOLL_CTL_ADD, loop->bell, &rings) != 0) {
        problem_set(problem, PROBLEM_INTERNAL, "cannot create an epoll instance or an eventfd: %s", strerror(errno));
        loop_free(loop);
        return NULL;
    }
    loop->now_ms = clock_ms();
    timers_begin(&loop->timers, loop->now_ms);
    return loop;
}

static void ring(Loop *loop)
{
    eventfd_write(loop->bell, 1); /* The counter cannot overflow during the life of the process. */
}

void loop_post(Loop *loop, Task *task)
{
    Task *last = atomic_load_explicit(&loop->tasks, memory_order_relaxed);
    do
        task->next = last;
    while (!atomic_compare_exchange_weak(&loop->tasks, &last, task));
    /* Either this thread sees that the loop is asleep, or the loop sees the task before it falls asleep. */
    if (current_loop != loop && atomic_load(&loop->asleep) && atomic_exchange(&loop->asleep, false))
        ring(loop);
}

static void run_tasks(Loop *loop)
{
    Task *last = atomic_exchange(&loop->tasks, NULL), *first = NULL;
    while (last) {
        Task *task = last;
        last = task->next;
        task->next = first;
        first = task;
    }
    while (first) {
        Task *task = first;
        first = task->next; /* The task may be posted again while it runs. */
        task->run(task);
    }
}

static void wait_for_events(Loop *loop)
{
    int wait_ms = timers_wait(&loop->timers, clock_ms());
    atomic_store(&loop->asleep, true);
    if (atomic_load(&loop->tasks) || atomic_load(&loop->stopping))
        wait_ms = 0;
    int count = epoll_wait(loop->epoll, loop->events, EVENTS, wait_ms);
    atomic_store(&loop->asleep, false);
    loop->event_count = count > 0 ? count : 0;
    loop->now_ms = clock_ms();
}

static void turn(Loop *loop)
{
    wait_for_events(loop);
    for (loop->event = 0; loop->event < loop->event_count; loop->event++) {
        struct epoll_event *event = &loop->events[loop->event];
        Watch *watch = event->data.ptr;
        if (watch)
            watch->ready(watch, event->events);
    }
    loop->event_count = 0;
    run_tasks(loop);
    timers_expire(&loop->timers, loop->now_ms);
}

void loop_run(Loop *loop)
{
    current_loop = loop;
    while (!atomic_load(&loop->stopping))
        turn(loop);
    run_tasks(loop); /* Run the tasks that were posted before the loop was stopped. */
    current_loop = NULL;
}

static void *run(void *loop)
{
    loop_run(loop);
    return NULL;
}

bool loop_start(Loop *loop, const char *name, Problem *problem)
{
    int error = pthread_create(&loop->thread, NULL, run, loop);
    if (error)
        return problem_set(problem, PROBLEM_INTERNAL, "cannot start a thread: %s", strerror(error));
    pthread_setname_np(loop->thread, name);
    return true;
}

void loop_stop(Loop *loop)
{
    atomic_store(&loop->stopping, true);
    ring(loop);
}

void loop_join(Loop *loop)
{
    pthread_join(loop->thread, NULL);
}

void loop_free(Loop *loop)
{
    current_loop = loop;
    while (atomic_load(&loop->tasks))
        run_tasks(loop);
    for (int slot = 0; slot < LOOP_SLOTS; slot++) {
        if (loop->slot_data[slot].release)
            loop->slot_data[slot].release(loop->slot_data[slot].data);
    }
    current_loop = NULL;
    if (loop->bell >= 0)
        close(loop->bell);
    if (loop->epoll >= 0)
        close(loop->epoll);
    free(loop);
}

bool loop_is_here(const Loop *loop)
{
    return current_loop == loop;
}

uint64_t loop_now_ms(const Loop *loop)
{
    return loop->now_ms;
}

void loop_set_timer(Loop *loop, Timer *timer, uint64_t due_ms)
{
    check_is_here(loop);
    timers_set(&loop->timers, timer, due_ms);
}

void loop_clear_timer(Loop *loop, Timer *timer)
{
    timers_clear(&loop->timers, timer);
}

static bool control(Loop *loop, int operation, Watch *watch, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return epoll_ctl(loop->epoll, operation, watch->fd, &event) == 0;
}

bool loop_watch(Loop *loop, Watch *watch, uint32_t events)
{
    return control(loop, EPOLL_CTL_ADD, watch, events);
}

bool loop_rewatch(Loop *loop, Watch *watch, uint32_t events)
{
    return control(loop, EPOLL_CTL_MOD, watch, events);
}

void loop_unwatch(Loop *loop, Watch *watch)
{
    control(loop, EPOLL_CTL_DEL, watch, 0);
    for (int i = loop->event; i < loop->event_count; i++) {
        if (loop->events[i].data.ptr == watch)
            loop->events[i].data.ptr = NULL;
    }
}

char *loop_scratch(Loop *loop)
{
    return loop->scratch;
}

void loop_set_slot(Loop *loop, LoopSlot slot, void *slot_data, void (*release)(void *slot_data))
{
    loop->slot_data[slot].data = slot_data;
    loop->slot_data[slot].release = release;
}

void *loop_slot(const Loop *loop, LoopSlot slot)
{
    return loop->slot_data[slot].data;
}
