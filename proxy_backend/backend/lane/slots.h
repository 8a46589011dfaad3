/* This end's memory on a connection: a slot per unread output, and some spare ones. Thread-safe. */
#ifndef PYTRITON_BACKEND_LANE_SLOTS_H
#define PYTRITON_BACKEND_LANE_SLOTS_H

#include "lane/call_connection.h"
#include "lane/memory.h"

#include <pthread.h>

/* Memory for one output at a time; the worker knows it by a number. */
typedef struct Slot {
    Arena arena;
    int64_t number; /* 0: the worker does not know it yet */
    uint64_t free_since_ns;
    struct Slot *next;
} Slot;

typedef struct {
    CallConnection *connection;
    pthread_mutex_t lock; /* guards the next three fields */
    Slot *free; /* the most recently freed slot comes first */
    uint64_t retained; /* bytes in the free slots */
    bool closed;
} Slots;

void slots_open(Slots *slots, CallConnection *connection);
/* Free all slots; one in use is freed when it is given back. */
void slots_close(Slots *slots);
/* Take an empty slot of this size. Returns NULL with the reason in `failure`, for free(). */
Slot *slot_acquire(Slots *slots, uint64_t size, char **failure);
/* Announce a slot to the worker, once. False: no descriptors are left. */
bool slot_announce(Slots *slots, Slot *slot);
void slot_release(Slots *slots, Slot *slot);
/* Returns whether more memory is free than is always kept; and frees slots that have been unused for a while. */
bool slots_exceed_limit(Slots *slots);
void slots_trim(Slots *slots);

#endif
