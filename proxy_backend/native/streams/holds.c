#define _GNU_SOURCE
#include "streams/holds.h"

#include "base/clock.h"
#include "streams/telling.h"
#include "wire/protocol.h"

/* After this time, a held stream continues if others wait for its worker. */
static const uint64_t most_held_ns = 1000000000;

LaneState stream_hold(Streams *streams, Flight *flight, uint32_t index)
{
    Stream *stream = &flight->streams[index];
    if (stream->flow == NULL || stream->held || stream->to.factory == NULL ||
        !flow_is_full(stream->flow, streams->bell))
        return LANE_OK;
    stream->held = true;
    streams->held++;
    if (flight->held++ == 0)
        flight->held_ns = steady_ns();
    return tell_of(streams, HOLD_NAME, flight, index);
}

void stream_let_go(Streams *streams, Flight *flight, Stream *stream)
{
    stream->held = false;
    streams->held--;
    /* The time that the caller takes to read does not count as the worker's. */
    if (--flight->held == 0 && flight->overdue_ns)
        flight->overdue_ns += steady_ns() - flight->held_ns;
}

/* Returns whether others wait for the producer of these answers: another request of the batch, or a batch that no
 * worker has begun (including this one until its `execute` returns).
 */
static bool others_wait(const Streams *streams, const Flight *flight)
{
    unsigned itself = streams->until_returned && !flight->returned;
    for (uint32_t i = 0; i < flight->count; i++)
        if (!flight->streams[i].held && flight->streams[i].to.factory)
            return true;
    return __atomic_load_n(&streams->proxy->model->waiting, __ATOMIC_RELAXED) > itself;
}

void flight_relent(Streams *streams, Flight *flight, uint64_t now_ns)
{
    if (flight->held == 0 || now_ns - flight->held_ns < most_held_ns || !others_wait(streams, flight))
        return;
    flight->held_ns += most_held_ns;
    if (flight->overdue_ns)
        flight->overdue_ns += most_held_ns;
    for (uint32_t i = 0; i < flight->count; i++)
        if (flight->streams[i].held)
            flow_widen(flight->streams[i].flow);
}

LaneState flight_go_on(Streams *streams, Flight *flight)
{
    LaneState state = LANE_OK;
    for (uint32_t i = 0; flight->held && i < flight->count && state == LANE_OK; i++) {
        Stream *stream = &flight->streams[i];
        if (!stream->held || flow_is_full(stream->flow, streams->bell) || is_gone(stream->to.factory))
            continue;
        stream_let_go(streams, flight, stream);
        state = tell_of(streams, GO_NAME, flight, i);
    }
    return state;
}
