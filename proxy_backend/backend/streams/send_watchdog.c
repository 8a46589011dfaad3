/* tritonserver's gRPC frontend (2.51) can deadlock when clients cancel streams with fast answers: two of its threads take
 * two locks in opposite order, one of them while it sends our answer. Then all streams of all clients hang. The only
 * remedy inside the process is to end it, after which the dispatcher restarts it. The measurements are in
 * docs/contributing/triton-notes.md, "Clients that cancel streams".
 */
#define _GNU_SOURCE
#include "streams/send_watchdog.h"

#include "base/thread.h"
#include "triton/errors.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

/* Interval between checks, and number of checks that must find the same answer before it counts as stuck. While the
 * process itself is suspended, for example on a frozen machine, no checks are made.
 */
#ifndef WATCHDOG_INTERVAL_MS
#define WATCHDOG_INTERVAL_MS 2000
#endif
enum { MAX_STUCK_CHECKS = 5 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static WatchedSender *senders;

/* The caller holds the lock. */
static void check_sender(WatchedSender *sender)
{
    uint64_t sends = __atomic_load_n(&sender->sends, __ATOMIC_RELAXED);
    sender->stuck_checks = sends % 2 && sends == sender->seen ? sender->stuck_checks + 1 : 0;
    sender->seen = sends;
    if (sender->stuck_checks < MAX_STUCK_CHECKS)
        return;
    log_error("model %s: tritonserver has not accepted an answer of a stream for %d s: its gRPC frontend hangs, as it "
              "can when clients cancel streams with fast answers; killing it for a restart",
        sender->model, MAX_STUCK_CHECKS * WATCHDOG_INTERVAL_MS / 1000);
    kill(getpid(), SIGKILL); /* Do not shut down in order: this would wait for the same locks. */
}

static void *watchdog_run(void *unused)
{
    const struct timespec pause = {
        .tv_sec = WATCHDOG_INTERVAL_MS / 1000, .tv_nsec = WATCHDOG_INTERVAL_MS % 1000 * 1000000L};
    (void)unused;
    for (;;) {
        nanosleep(&pause, NULL);
        pthread_mutex_lock(&lock);
        while (senders == NULL)
            pthread_cond_wait(&added, &lock);
        for (WatchedSender *sender = senders; sender; sender = sender->next)
            check_sender(sender);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

static void start(void)
{
    pthread_t thread; /* The thread runs until the process ends. */
    if (thread_start(&thread, THREAD_SMALL_STACK, watchdog_run, NULL))
        pthread_detach(thread);
    else
        log_error("cannot start the thread that watches streams: a hanging tritonserver will not be noticed");
}

void watchdog_begin(WatchedSender *sender, const char *model)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    if (sender->watched)
        return;
    pthread_mutex_lock(&lock);
    *sender = (WatchedSender){.next = senders, .model = model, .watched = true};
    senders = sender;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
}

void watchdog_end(WatchedSender *sender)
{
    if (!sender->watched)
        return;
    pthread_mutex_lock(&lock);
    WatchedSender **link = &senders;
    while (*link != sender)
        link = &(*link)->next;
    *link = sender->next;
    sender->watched = false;
    pthread_mutex_unlock(&lock);
}

void watchdog_send_begins(WatchedSender *sender)
{
    __atomic_store_n(&sender->sends, sender->sends + 1, __ATOMIC_RELAXED);
}

void watchdog_send_ended(WatchedSender *sender)
{
    __atomic_store_n(&sender->sends, sender->sends + 1, __ATOMIC_RELAXED);
}
