/* A request that ends at the moment of its cancellation crashes tritonserver: its gRPC frontend (2.51) frees the
 * request's state while an answer is still being written. So a request whose client has disconnected ends later, when
 * none of its answers is in flight. docs/contributing/triton-notes.md, "Clients that cancel streams", has the
 * measurements.
 */
#define _GNU_SOURCE
#include "streams/delayed_close.h"

#include "base/clock.h"
#include "base/thread.h"
#include "triton/errors.h"

#include <stdlib.h>
#include <time.h>

/* gRPC drops pending answers immediately when a client disconnects. */
static const uint64_t delay_ns = 300000000;

typedef struct DelayedClose {
    struct DelayedClose *next;
    TRITONBACKEND_ResponseFactory *factory;
    uint64_t due_ns;
} DelayedClose;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static DelayedClose *pending, **pending_tail = &pending; /* sorted by due_ns */

static void close_now(TRITONBACKEND_ResponseFactory *factory)
{
    triton_error_consume(TRITONBACKEND_ResponseFactorySendFlags(factory, RESPONSE_FINAL));
    triton_error_consume(TRITONBACKEND_ResponseFactoryDelete(factory));
}

static DelayedClose *next_pending(void)
{
    pthread_mutex_lock(&lock);
    while (pending == NULL)
        pthread_cond_wait(&added, &lock);
    DelayedClose *item = pending;
    pending = item->next;
    if (pending == NULL)
        pending_tail = &pending;
    pthread_mutex_unlock(&lock);
    return item;
}

static void *close_loop(void *unused)
{
    (void)unused;
    for (;;) {
        DelayedClose *item = next_pending();
        struct timespec due = {
            .tv_sec = (time_t)(item->due_ns / 1000000000), .tv_nsec = (long)(item->due_ns % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
            ;
        close_now(item->factory);
        free(item);
    }
    return NULL;
}

static bool running;

static void start(void)
{
    pthread_t thread; /* it runs until the process ends */
    running = thread_start(&thread, THREAD_SMALL_STACK, close_loop, NULL);
    if (running)
        pthread_detach(thread);
}

void delayed_close(TRITONBACKEND_ResponseFactory *factory)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    DelayedClose *item = running ? malloc(sizeof *item) : NULL;
    if (item == NULL) {
        close_now(factory);
        return;
    }
    *item = (DelayedClose){.factory = factory, .due_ns = clock_monotonic_ns() + delay_ns};
    pthread_mutex_lock(&lock);
    *pending_tail = item;
    pending_tail = &item->next;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
}
