#define _GNU_SOURCE
#include "streams/telling.h"

#include "wire/protocol.h"

/* How many parts, and bytes of them, are credited to the worker at once; and the arena fill level at which the worker
 * waits: it sends nothing more, and empties the arena, only after everything was credited.
 */
enum { CREDIT = 8, CREDIT_BYTES = 1 << 19, FULL = (8 << 20) - (1 << 16) };

/* A worker that no longer reads may have answered before it ended: its answers count. */
static LaneState tell(Streams *streams, const Buffer *message)
{
    pthread_mutex_lock(&streams->lock);
    LaneState state = lane_send(streams->lane, message);
    pthread_mutex_unlock(&streams->lock);
    return state == LANE_UNREAD ? LANE_OK : state;
}

LaneState give_credit(Streams *streams)
{
    Buffer message = {0};
    if (streams->uncredited == 0)
        return LANE_OK;
    put_credit(&message, streams->uncredited);
    LaneState state = tell(streams, &message);
    buffer_free(&message);
    streams->uncredited = 0;
    streams->lane->unreturned = 0;
    return state;
}

LaneState take_credit(Streams *streams, uint32_t parts)
{
    streams->uncredited += parts;
    const Lane *lane = streams->lane;
    bool due = streams->uncredited >= CREDIT || lane->unreturned >= CREDIT_BYTES || lane->reached >= FULL;
    return due ? give_credit(streams) : LANE_OK;
}

_Static_assert((int)HOLD_SIZE == (int)CANCEL_SIZE && (int)GO_SIZE == (int)CANCEL_SIZE, "tell_of says all of them");

LaneState tell_of(Streams *streams, const char *what, const Flight *flight, uint32_t index)
{
    Buffer message = {0};
    put_array(&message, CANCEL_SIZE);
    put_string(&message, what);
    put_int(&message, flight->id);
    put_int(&message, index);
    LaneState state = tell(streams, &message);
    buffer_free(&message);
    return state;
}
