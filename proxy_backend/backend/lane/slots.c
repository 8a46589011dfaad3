#define _GNU_SOURCE
#include "lane/slots.h"

#include "common/clock.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* Maximum total size of the free slots that are kept for the next outputs. A larger slot is not kept. */
static const uint64_t max_retained = 64 << 20;

static void free_slot(Slot *slot)
{
    arena_close(&slot->arena);
    free(slot);
}

void slots_open(Slots *slots, CallConnection *connection)
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
    slots->retained = 0;
    pthread_mutex_unlock(&slots->lock);
}

/* Remove and return a free slot: the smallest that is large enough, otherwise the last one. NULL if there is none. */
static Slot *take_free_slot(Slots *slots, uint64_t size)
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
        slots->retained -= slot->arena.size;
    }
    pthread_mutex_unlock(&slots->lock);
    return slot;
}

Slot *slot_acquire(Slots *slots, uint64_t size, char **failure)
{
    uint64_t offset;
    Slot *slot = take_free_slot(slots, size);
    if (slot == NULL) {
        slot = calloc(1, sizeof *slot);
        if (slot)
            slot->arena.fd = -1;
    }
    *failure = slot ? arena_allocate(&slot->arena, size, &offset) : strdup("out of memory");
    if (*failure && slot) {
        slot_release(slots, slot);
        slot = NULL;
    }
    return *failure ? NULL : slot;
}

bool slot_announce(Slots *slots, Slot *slot)
{
    int descriptor = slot->number ? -1 : arena_open_readonly(&slot->arena);
    if (descriptor >= 0)
        slot->number = call_connection_announce(slots->connection, descriptor);
    return slot->number != 0;
}

/* Free a slot, which the worker may have mapped. */
static void discard(Slots *slots, Slot *slot)
{
    int64_t number = slot->number;
    free_slot(slot);
    if (number) {
        Buffer message = {0};
        msgpack_put_array(&message, FORGET_SIZE);
        msgpack_put_string(&message, FORGET_NAME);
        msgpack_put_int(&message, number);
        call_connection_send(slots->connection, &message);
        buffer_free(&message);
    }
}

void slot_release(Slots *slots, Slot *slot)
{
    arena_reset(&slot->arena);
    pthread_mutex_lock(&slots->lock);
    bool retained = !slots->closed && slot->arena.map && slot->arena.size <= max_retained;
    if (retained) {
        slot->next = slots->free;
        slot->free_since_ns = clock_ns();
        slots->free = slot;
        slots->retained += slot->arena.size;
    }
    pthread_mutex_unlock(&slots->lock);
    if (!retained)
        discard(slots, slot);
}

bool slots_exceed_limit(Slots *slots)
{
    pthread_mutex_lock(&slots->lock);
    bool large = slots->retained > max_retained;
    pthread_mutex_unlock(&slots->lock);
    return large;
}

void slots_trim(Slots *slots)
{
    uint64_t until_ns = clock_ns() - RETAIN_MS * UINT64_C(1000000);
    Slot *idle = NULL;
    pthread_mutex_lock(&slots->lock);
    for (Slot **at = &slots->free; *at && slots->retained > max_retained;) {
        Slot *slot = *at;
        if (slot->free_since_ns > until_ns) {
            at = &slot->next;
            continue;
        }
        *at = slot->next;
        slots->retained -= slot->arena.size;
        slot->next = idle;
        idle = slot;
    }
    pthread_mutex_unlock(&slots->lock);
    while (idle) {
        Slot *next = idle->next;
        discard(slots, idle);
        idle = next;
    }
}
