/* A watch for answers that tritonserver does not take. */
#ifndef PYTRITON_WATCH_H
#define PYTRITON_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/* A thread that gives answers to tritonserver. All fields belong to watch.c. */
typedef struct Sender {
    struct Sender *next;
    const char *model;
    uint64_t sends; /* odd: one is under way */
    uint64_t seen;  /* what it was at the last look, and for how many looks it has been that */
    int looks;
    bool watched;
} Sender;

/* Watch a sender while batches are under way; a second call changes nothing. */
void watch_begin(Sender *sender, const char *model);
void watch_end(Sender *sender);
/* Called before and after a call of tritonserver's that may never return. */
void sending(Sender *sender);
void sent(Sender *sender);

#endif
