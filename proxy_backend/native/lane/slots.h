/* Memory of this end of a connection: for as many outputs as were ever unread at once. For any thread. */
#ifndef PYTRITON_SLOTS_H
#define PYTRITON_SLOTS_H

#include "lane/connection.h"
#include "lane/memory.h"

#include <pthread.h>

/* Memory for one output at a time; the worker knows it by a number. */
typedef struct Slot {
    Arena arena;
    int64_t number; /* 0: the worker does not know it yet */
    struct Slot *next;
} Slot;

typedef struct {
    Connection *connection;
    pthread_mutex_t lock; /* guards the next two */
    Slot *free;
    bool closed;
} Slots;

void slots_open(Slots *slots, Connection *connection);
/* Give all back; what is in use follows when it is given back. */
void slots_close(Slots *slots);
/* A slot with room for so much, at its beginning. NULL: `failure`, for free(), says why. */
Slot *slot_take(Slots *slots, uint64_t size, char **failure);
/* Let the worker know it, unless it does. False: no descriptors are left. */
bool slot_announce(Slots *slots, Slot *slot);
void slot_give_back(Slots *slots, Slot *slot);

#endif
