#define _GNU_SOURCE
#include "streams/stream_send.h"

#include "wire/protocol.h"

/* How many parts, and bytes of them, are credited to the worker at once; and the arena fill level at which the worker
 * waits: it sends nothing more, and empties the arena, only after everything was credited.
 */
enum { CREDIT_PARTS = 8, CREDIT_BYTES = 1 << 19, ARENA_FULL = (8 << 20) - (1 << 16) };

/* A worker that no longer reads may have answered before it ended: its answers count. */
static LaneState send_control(Streams *streams, const Buffer *message)
{
    pthread_mutex_lock(&streams->lock);
    LaneState state = lane_send(streams->lane, message);
    pthread_mutex_unlock(&streams->lock);
    return state == LANE_UNREAD ? LANE_OK : state;
}

LaneState streams_send_credit(Streams *streams)
{
    Buffer message = {0};
    if (streams->uncredited == 0)
        return LANE_OK;
    lane_put_credit(&message, streams->uncredited);
    LaneState state = send_control(streams, &message);
    buffer_free(&message);
    streams->uncredited = 0;
    streams->lane->uncredited_bytes = 0;
    return state;
}

LaneState streams_add_credit(Streams *streams, uint32_t parts)
{
    streams->uncredited += parts;
    const Lane *lane = streams->lane;
    bool due =
        streams->uncredited >= CREDIT_PARTS || lane->uncredited_bytes >= CREDIT_BYTES || lane->reached >= ARENA_FULL;
    return due ? streams_send_credit(streams) : LANE_OK;
}

_Static_assert((int)HOLD_SIZE == (int)CANCEL_SIZE && (int)GO_SIZE == (int)CANCEL_SIZE,
    "streams_send_flight_event writes all of them");

LaneState streams_send_flight_event(Streams *streams, const char *what, const Flight *flight, uint32_t index)
{
    Buffer message = {0};
    msgpack_put_array(&message, CANCEL_SIZE);
    msgpack_put_string(&message, what);
    msgpack_put_int(&message, flight->id);
    msgpack_put_int(&message, index);
    LaneState state = send_control(streams, &message);
    buffer_free(&message);
    return state;
}
