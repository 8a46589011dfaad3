#define _GNU_SOURCE
#include "streams/stream_send.h"

#include "common/clock.h"
#include "wire/protocol.h"

/* How long a stream stays paused while others are waiting for its worker. */
static const uint64_t max_paused_ns = 1000000000;

LaneState stream_pause(Streams *streams, Flight *flight, uint32_t index)
{
    Stream *stream = &flight->streams[index];
    if (stream->flow == NULL || stream->paused || stream->to.factory == NULL ||
        !flow_is_full(stream->flow, streams->wakeup))
        return LANE_OK;
    stream->paused = true;
    streams->paused_count++;
    if (flight->paused_count++ == 0)
        flight->paused_ns = clock_ns();
    return streams_send_flight_event(streams, HOLD_NAME, flight, index);
}

void stream_clear_pause(Streams *streams, Flight *flight, Stream *stream)
{
    stream->paused = false;
    streams->paused_count--;
    /* The time for which the caller did not read does not count towards the worker's limit. */
    if (--flight->paused_count == 0 && flight->overdue_ns)
        flight->overdue_ns += clock_ns() - flight->paused_ns;
}

/* Returns whether others are waiting for the worker: another request of the batch, or a batch that no worker has begun
 * (including this one until its `execute` has returned).
 */
static bool others_are_waiting(const Streams *streams, const Flight *flight)
{
    unsigned itself = streams->waits_for_return && !flight->returned;
    for (uint32_t i = 0; i < flight->count; i++)
        if (!flight->streams[i].paused && flight->streams[i].to.factory)
            return true;
    return __atomic_load_n(&streams->proxy->model->waiting, __ATOMIC_RELAXED) > itself;
}

void flight_raise_limits(Streams *streams, Flight *flight, uint64_t now_ns)
{
    if (flight->paused_count == 0 || now_ns - flight->paused_ns < max_paused_ns || !others_are_waiting(streams, flight))
        return;
    flight->paused_ns += max_paused_ns;
    if (flight->overdue_ns)
        flight->overdue_ns += max_paused_ns;
    for (uint32_t i = 0; i < flight->count; i++)
        if (flight->streams[i].paused)
            flow_raise_limit(flight->streams[i].flow);
}

LaneState flight_resume(Streams *streams, Flight *flight)
{
    LaneState state = LANE_OK;
    for (uint32_t i = 0; flight->paused_count && i < flight->count && state == LANE_OK; i++) {
        Stream *stream = &flight->streams[i];
        if (!stream->paused || flow_is_full(stream->flow, streams->wakeup) ||
            response_client_is_gone(stream->to.factory))
            continue;
        stream_clear_pause(streams, flight, stream);
        state = streams_send_flight_event(streams, GO_NAME, flight, i);
    }
    return state;
}

/* The worker gets credit for this many parts, or bytes of parts, at once. When its arena is filled to ARENA_FULL, it
 * waits until everything has been credited, and then empties the arena. After INLINE_PARTS parts outside the arena, it no
 * longer waits: it sends texts in messages only while fewer parts are unread.
 */
enum { CREDIT_PARTS = 16, CREDIT_BYTES = 1 << 19, ARENA_FULL = (8 << 20) - (1 << 16), INLINE_PARTS = 64 };

/* Ignore a failure to send: a worker that no longer reads may have answered before it ended, and its answers count. */
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
    Lane *lane = streams->lane;
    bool is_full = lane->reached >= ARENA_FULL;
    bool due = streams->uncredited >= CREDIT_PARTS || lane->uncredited_bytes >= CREDIT_BYTES || is_full;
    if (is_full)
        lane->inline_parts = lane->uncredited_bytes ? 0 : lane->inline_parts + parts;
    if (lane->inline_parts >= INLINE_PARTS)
        lane->reached = lane->inline_parts = 0;
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
