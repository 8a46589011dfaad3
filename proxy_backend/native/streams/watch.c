/* tritonserver's gRPC frontend (2.51) can deadlock when clients cancel streams whose answers come fast: two of its
 * threads take two locks in opposite order, one of them with our answer, and from then on no stream of any client
 * continues. The only remedy from inside is to end the process, which the dispatcher restarts.
 * docs/contributing/triton-notes.md, "Clients that cancel streams", has the measurements.
 */
#define _GNU_SOURCE
#include "streams/watch.h"

#include "base/thread.h"
#include "triton/errors.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

/* The interval between checks, and the number of checks that must see the same answer before it counts as stuck. A
 * process that was itself suspended, for example on a frozen machine, made no checks in that time.
 */
#ifndef LOOK_MS
#define LOOK_MS 2000
#endif
enum { LOOKS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static Sender *senders;

/* With the lock held. */
static void look(Sender *sender)
{
    uint64_t sends = __atomic_load_n(&sender->sends, __ATOMIC_RELAXED);
    sender->looks = sends % 2 && sends == sender->seen ? sender->looks + 1 : 0;
    sender->seen = sends;
    if (sender->looks < LOOKS)
        return;
    log_error(
        "model %s: tritonserver has not taken an answer of a stream for %d s: its gRPC part hangs, as it may when "
        "clients cancel streams whose answers come fast; it is ended, to be started again",
        sender->model, LOOKS * LOOK_MS / 1000);
    kill(getpid(), SIGKILL); /* an orderly shutdown would wait for the same locks */
}

static void *watch(void *unused)
{
    const struct timespec pause = {.tv_sec = LOOK_MS / 1000, .tv_nsec = LOOK_MS % 1000 * 1000000L};
    (void)unused;
    for (;;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        while (senders == NULL)
            pthread_cond_wait(&added, &lock);
        for (Sender *sender = senders; sender; sender = sender->next)
            look(sender);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread; /* it runs until the process ends */
    if (start_thread(&thread, SMALL_STACK, watch, NULL))
        pthread_detach(thread);
    else
        log_error("cannot start a thread to watch over streams: a tritonserver that hangs will not be noticed");
}

void watch_begin(Sender *sender, const char *model)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    if (sender->watched)
        return;
    pthread_mutex_lock(&lock);
    *sender = (Sender){.next = senders, .model = model, .watched = true};
    senders = sender;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
}

void watch_end(Sender *sender)
{
    if (!sender->watched)
        return;
    pthread_mutex_lock(&lock);
    Sender **link = &senders;
    while (*link != sender)
        link = &(*link)->next;
    *link = sender->next;
    sender->watched = false;
    pthread_mutex_unlock(&lock);
}

void sending(Sender *sender)
{
    __atomic_store_n(&sender->sends, sender->sends + 1, __ATOMIC_RELAXED);
}

void sent(Sender *sender)
{
    __atomic_store_n(&sender->sends, sender->sends + 1, __ATOMIC_RELAXED);
}
