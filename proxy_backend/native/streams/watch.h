/* Notices when tritonserver does not take an answer. */
#ifndef PYTRITON_WATCH_H
#define PYTRITON_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that gives answers to tritonserver. All of it belongs to watch.c. */
typedef struct Sender {
    struct Sender *next;
    const char *model;
    uint64_t sends; /* odd: one is under way */
    uint64_t seen;  /* what it was at the last look, and for how many looks it has been that */
    int looks;
    bool watched;
} Sender;

/* Watch a sender while batches are under way; again: no change. */
void watch_begin(Sender *sender, const char *model);
void watch_end(Sender *sender);
/* Around what may never return. */
void sending(Sender *sender);
void sent(Sender *sender);

#endif
