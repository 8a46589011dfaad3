/* A watchdog for answers that tritonserver does not accept. */
#ifndef PYTRITON_WATCH_H
#define PYTRITON_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that passes answers to tritonserver. All fields belong to watch.c. */
typedef struct Sender {
    struct Sender *next;
    const char *model;
    uint64_t sends; /* odd: a send is in progress */
    uint64_t seen;  /* its value at the last check, and for how many checks it has had it */
    int looks;
    bool watched;
} Sender;

/* Watch a sender while batches are in flight; further calls have no effect. */
void watch_begin(Sender *sender, const char *model);
void watch_end(Sender *sender);
/* Called before and after a tritonserver call that may never return. */
void sending(Sender *sender);
void sent(Sender *sender);

#endif
