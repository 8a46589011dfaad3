/* A watchdog that ends the process when tritonserver does not return from sending an answer. */
#ifndef PYTRITON_BACKEND_STREAMS_SEND_WATCHDOG_H
#define PYTRITON_BACKEND_STREAMS_SEND_WATCHDOG_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that passes answers to tritonserver. Only send_watchdog.c uses the fields. */
typedef struct WatchedSender {
    struct WatchedSender *next;
    const char *model;
    uint64_t sends; /* odd while a send is in progress */
    uint64_t seen;  /* value at the last check, and number of checks since it changed */
    int stuck_checks;
    bool watched;
} WatchedSender;

/* Watch a sender while batches are in flight. Further calls have no effect. */
void watchdog_begin(WatchedSender *sender, const char *model);
void watchdog_end(WatchedSender *sender);
/* Mark the beginning and the end of a call of tritonserver that may never return. */
void watchdog_send_begins(WatchedSender *sender);
void watchdog_send_ended(WatchedSender *sender);

#endif
