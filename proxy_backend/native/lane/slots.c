#define _GNU_SOURCE
#include "lane/slots.h"

#include "base/clock.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of free slots that are kept for the next outputs. A larger slot is not kept. */
static const uint64_t most_kept = 64 << 20;

static void free_slot(Slot *slot)
{
    arena_close(&slot->arena);
    free(slot);
}

void slots_open(Slots *slots, Connection *connection)
{
    *slots = (Slots){.connection = connection};
    pthread_mutex_init(&slots->lock, NULL);
}

void slots_close(Slots *slots)
{
    pthread_mutex_lock(&slots->lock);
    slots->closed = true;
    while (slots->free) {
        Slot *slot = slots->free;
        slots->free = slot->next;
        free_slot(slot);
    }
    slots->kept = 0;
    pthread_mutex_unlock(&slots->lock);
}

/* Remove the smallest free slot that is large enough from the list, else the last one; NULL if there is none. */
static Slot *free_slot_for(Slots *slots, uint64_t size)
{
    Slot **best = NULL;
    pthread_mutex_lock(&slots->lock);
    for (Slot **at = &slots->free; *at; at = &(*at)->next) {
        uint64_t room = (*at)->arena.size;
        if (best == NULL || (*best)->arena.size < size || (room >= size && room < (*best)->arena.size))
            best = at;
    }
    Slot *slot = best ? *best : NULL;
    if (slot) {
        *best = slot->next;
        slots->kept -= slot->arena.size;
    }
    pthread_mutex_unlock(&slots->lock);
    return slot;
}

Slot *slot_take(Slots *slots, uint64_t size, char **failure)
{
    uint64_t offset;
    Slot *slot = free_slot_for(slots, size);
    if (slot == NULL) {
        slot = calloc(1, sizeof *slot);
        if (slot)
            slot->arena.fd = -1;
    }
    *failure = slot ? arena_allocate(&slot->arena, size, &offset) : strdup("out of memory");
    if (*failure && slot) {
        slot_give_back(slots, slot);
        slot = NULL;
    }
    return *failure ? NULL : slot;
}

bool slot_announce(Slots *slots, Slot *slot)
{
    int descriptor = slot->number ? -1 : arena_open_readonly(&slot->arena);
    if (descriptor >= 0)
        slot->number = connection_announce(slots->connection, descriptor);
    return slot->number != 0;
}

/* Free a slot that the worker may know. */
static void forget(Slots *slots, Slot *slot)
{
    int64_t number = slot->number;
    free_slot(slot);
    if (number) {
        Buffer message = {0};
        put_array(&message, FORGET_SIZE);
        put_string(&message, FORGET_NAME);
        put_int(&message, number);
        connection_send(slots->connection, &message);
        buffer_free(&message);
    }
}

void slot_give_back(Slots *slots, Slot *slot)
{
    arena_reset(&slot->arena);
    pthread_mutex_lock(&slots->lock);
    bool kept = !slots->closed && slot->arena.map && slot->arena.size <= most_kept;
    if (kept) {
        slot->next = slots->free;
        slot->free_since_ns = steady_ns();
        slots->free = slot;
        slots->kept += slot->arena.size;
    }
    pthread_mutex_unlock(&slots->lock);
    if (!kept)
        forget(slots, slot);
}

bool slots_large(Slots *slots)
{
    pthread_mutex_lock(&slots->lock);
    bool large = slots->kept > most_kept;
    pthread_mutex_unlock(&slots->lock);
    return large;
}

void slots_give_back_idle(Slots *slots)
{
    uint64_t until_ns = steady_ns() - KEPT_MS * UINT64_C(1000000);
    Slot *idle = NULL;
    pthread_mutex_lock(&slots->lock);
    for (Slot **at = &slots->free; *at && slots->kept > most_kept;) {
        Slot *slot = *at;
        if (slot->free_since_ns > until_ns) {
            at = &slot->next;
            continue;
        }
        *at = slot->next;
        slots->kept -= slot->arena.size;
        slot->next = idle;
        idle = slot;
    }
    pthread_mutex_unlock(&slots->lock);
    while (idle) {
        Slot *next = idle->next;
        forget(slots, idle);
        idle = next;
    }
}
