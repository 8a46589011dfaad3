/* A request that ends at the moment of its cancellation crashes tritonserver: its gRPC frontend (2.51) frees the
 * request's state while an answer is still being written. So a request whose client has disconnected ends later, when
 * none of its answers is in flight. docs/contributing/triton-notes.md, "Clients that cancel streams", has the
 * measurements.
 */
#define _GNU_SOURCE
#include "streams/endings.h"

#include "base/clock.h"
#include "base/thread.h"
#include "triton/errors.h"

#include <stdlib.h>
#include <time.h>

/* gRPC drops pending answers immediately when a client disconnects. */
static const uint64_t later_ns = 300000000;

typedef struct ShutdownController {
    struct ShutdownController *next;
    TRITONBACKEND_ResponseFactory *factory;
    uint64_t due_ns;
} ShutdownController;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static ShutdownController *endings, **last = &endings; /* sorted by due_ns */

static void end_now(TRITONBACKEND_ResponseFactory *factory)
{
    failed(TRITONBACKEND_ResponseFactorySendFlags(factory, RESPONSE_FINAL));
    failed(TRITONBACKEND_ResponseFactoryDelete(factory));
}

static ShutdownController *next_ending(void)
{
    pthread_mutex_lock(&lock);
    while (endings == NULL)
        pthread_cond_wait(&added, &lock);
    ShutdownController *ending = endings;
    endings = ending->next;
    if (endings == NULL)
        last = &endings;
    pthread_mutex_unlock(&lock);
    return ending;
}

static void *end_all(void *unused)
{
    (void)unused;
    for (;;) {
        ShutdownController *ending = next_ending();
        struct timespec due = {
            .tv_sec = (time_t)(ending->due_ns / 1000000000), .tv_nsec = (long)(ending->due_ns % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
            ;
        end_now(ending->factory);
        free(ending);
    }
    return NULL;
}

static bool running;

static void start(void)
{
    pthread_t thread; /* it runs until the process ends */
    running = start_thread(&thread, SMALL_STACK, end_all, NULL);
    if (running)
        pthread_detach(thread);
}

void end_later(TRITONBACKEND_ResponseFactory *factory)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    ShutdownController *ending = running ? malloc(sizeof *ending) : NULL;
    if (ending == NULL) {
        end_now(factory);
        return;
    }
    *ending = (ShutdownController){.factory = factory, .due_ns = steady_ns() + later_ns};
    pthread_mutex_lock(&lock);
    *last = ending;
    last = &ending->next;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
}
