/* Memory of this end on a connection for calls: a slot for each unread output, and some spare ones. Thread-safe. */
#ifndef PYTRITON_BACKEND_LANE_SLOTS_H
#define PYTRITON_BACKEND_LANE_SLOTS_H

#include "lane/call_connection.h"
#include "lane/memory.h"

#include <pthread.h>

/* Memory for one output at a time. The worker knows it by its number. */
typedef struct Slot {
    Arena arena;
    int64_t number; /* 0 until it has been announced to the worker */
    uint64_t free_since_ns;
    struct Slot *next;
} Slot;

typedef struct {
    CallConnection *connection;
    pthread_mutex_t lock; /* guards the three fields below */
    Slot *free; /* most recently freed slot first */
    uint64_t retained; /* total bytes of the free slots */
    bool closed;
} Slots;

void slots_open(Slots *slots, CallConnection *connection);
/* Free all free slots. A slot in use is freed when it is released. */
void slots_close(Slots *slots);
/* Take an empty slot of `size` bytes. Returns NULL with an error in `failure`, for free(). */
Slot *slot_acquire(Slots *slots, uint64_t size, char **failure);
/* Announce a slot to the worker, once. Returns false if no descriptors are left. */
bool slot_announce(Slots *slots, Slot *slot);
void slot_release(Slots *slots, Slot *slot);
/* Returns whether the free slots exceed the size that is always kept. */
bool slots_exceed_limit(Slots *slots);
/* Free slots in excess of that size that have been unused for RETAIN_MS. */
void slots_trim(Slots *slots);

#endif
