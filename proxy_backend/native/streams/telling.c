#define _GNU_SOURCE
#include "streams/telling.h"

#include "wire/protocol.h"

/* Parts that are given back to the worker at once. */
enum { CREDIT = 8 };

/* A worker that does not hear it any more may have answered before it went: that is what counts. */
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
    put_credit(&message, streams->uncredited);
    LaneState state = tell(streams, &message);
    buffer_free(&message);
    streams->uncredited = 0;
    return state;
}

LaneState take_credit(Streams *streams, uint32_t parts)
{
    streams->uncredited += parts;
    return streams->uncredited < CREDIT ? LANE_OK : give_credit(streams);
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
