/* A watchdog for answers that tritonserver does not accept. */
#ifndef PYTRITON_BACKEND_STREAMS_SEND_WATCHDOG_H
#define PYTRITON_BACKEND_STREAMS_SEND_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that passes answers to tritonserver. All fields belong to send_watchdog.c. */
typedef struct WatchedSender {
    struct WatchedSender *next;
    const char *model;
    uint64_t sends; /* odd: a send is in progress */
    uint64_t seen;  /* its value at the last check, and for how many checks it has had it */
    int stuck_checks;
    bool watched;
} WatchedSender;

/* Watch a sender while batches are in flight; further calls have no effect. */
void watchdog_begin(WatchedSender *sender, const char *model);
void watchdog_end(WatchedSender *sender);
/* Called before and after a tritonserver call that may never return. */
void watchdog_send_begins(WatchedSender *sender);
void watchdog_send_ended(WatchedSender *sender);

#endif
