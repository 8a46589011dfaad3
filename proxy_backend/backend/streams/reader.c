/* The reader thread of a lane. It forwards answers as they arrive, and makes periodic checks while batches are in
 * flight.
 */
#define _GNU_SOURCE
#include "streams/reader.h"

#include "common/clock.h"
#include "base/strings.h"
#include "proxy/proxy.h"
#include "streams/stream_send.h"
#include "streams/worker_lost.h"
#include "streams/state.h"
#include "wire/protocol.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Interval between checks for disconnected clients. */
static const uint64_t check_interval_ns = 125000000;

/* Remove a batch from the list. The caller holds the lock. */
static void remove_flight(Streams *streams, Flight *flight)
{
    Flight **link = &streams->flights;
    while (*link != flight)
        link = &(*link)->next;
    *link = flight->next;
    flight->is_inflight = false;
    streams->inflight_count--;
    pthread_cond_broadcast(&streams->changed);
}

static Flight *find_flight(Streams *streams, int64_t id)
{
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights;
    while (flight && flight->id != id)
        flight = flight->next;
    pthread_mutex_unlock(&streams->lock);
    return flight; /* The pointer stays valid: only the reader thread removes a batch that was sent. */
}

static LaneState set_fault(Lane *lane, const char *what, Slice tag)
{
    int shown = (int)(tag.size < 40 ? tag.size : 40);
    snprintf(lane->fault, sizeof lane->fault, "%s%s%.*s", what, shown ? ": " : "", shown, tag.start);
    return LANE_FAULT;
}

/* Tell the worker if the client of a request has disconnected. This is delayed, because tritonserver's gRPC frontend
 * (2.51) may use freed memory if a request ends at the moment of its cancellation.
 */
static LaneState check_client(Streams *streams, Flight *flight, uint32_t index, uint64_t now_ns)
{
    Stream *stream = &flight->streams[index];
    if (stream->to.factory == NULL || stream->cancelled || !response_client_is_gone(stream->to.factory))
        return LANE_OK;
    stream->disconnected_ns = stream->disconnected_ns ? stream->disconnected_ns : now_ns;
    if (now_ns - stream->disconnected_ns < check_interval_ns)
        return LANE_OK;
    stream->cancelled = true;
    if (stream->paused)
        stream_clear_pause(streams, flight, stream);
    return streams_send_flight_event(streams, CANCEL_NAME, flight, index);
}

/* Tell the worker which clients have disconnected, and check whether batches are overdue. */
static LaneState check_flights(Streams *streams)
{
    LaneState state = LANE_OK;
    uint64_t now_ns = streams->checked_ns = clock_ns();
    pthread_mutex_lock(&streams->lock);
    /* New batches are inserted before it, and only this thread removes one that has begun. */
    Flight *flight = streams->flights;
    pthread_mutex_unlock(&streams->lock);
    while (flight && state == LANE_OK) {
        pthread_mutex_lock(&streams->lock);
        bool begun = flight->begun;
        Flight *next = flight->next;
        pthread_mutex_unlock(&streams->lock);
        for (uint32_t i = 0; begun && i < flight->count && state == LANE_OK; i++)
            state = check_client(streams, flight, i, now_ns);
        flight_raise_limits(streams, flight, now_ns);
        if (state == LANE_OK)
            state = flight_resume(streams, flight);
        if (begun && flight->overdue_ns && flight->paused_count == 0 && now_ns > flight->overdue_ns)
            flight_report_overdue(streams, flight, now_ns);
        flight = next;
    }
    return state;
}

/* A caller has read from a paused stream: find out which one, and resume it. */
static LaneState handle_wakeup(Streams *streams)
{
    LaneState state = LANE_OK;
    wakeup_reset(streams->wakeup);
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights; /* Safe without the lock, as in check_flights. */
    pthread_mutex_unlock(&streams->lock);
    while (flight && state == LANE_OK) {
        state = flight_resume(streams, flight);
        pthread_mutex_lock(&streams->lock);
        flight = flight->next;
        pthread_mutex_unlock(&streams->lock);
    }
    return state;
}

/* Wait until the worker sends a message or a caller has read from a paused stream. Returns LANE_TIMEOUT after handling
 * the latter.
 */
static LaneState wait_for_message_or_wakeup(Streams *streams)
{
    struct pollfd both[] = {{.fd = streams->lane->fd, .events = POLLIN}, {.fd = streams->wakeup->fd, .events = POLLIN}};
    int ready = poll(both, 2, (int)(check_interval_ns / 1000000));
    LaneState state = ready > 0 && both[1].revents ? handle_wakeup(streams) : LANE_OK;
    return state == LANE_OK && (ready <= 0 || both[0].revents == 0) ? LANE_TIMEOUT : state;
}

static LaneState handle_begun(Streams *streams, Flight *flight)
{
    double limit_s = streams->proxy->execution_timeout_s;
    if (limit_s > 0)
        flight->overdue_ns = clock_ns() + (uint64_t)(limit_s * 1e9);
    flight->read_ns = 0;
    if (!streams->has_check_timeout) {
        lane_set_timeout(streams->lane, (double)check_interval_ns / 1e9);
        streams->checked_ns = clock_ns();
    }
    streams->has_check_timeout = true;
    watchdog_begin(&streams->sender, streams->proxy->model->name);
    pthread_mutex_lock(&streams->lock);
    flight->begun = true;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    return LANE_OK;
}

/* Begin to answer a request of a batch. */
static LaneState begin_answer(Streams *streams, Flight *flight, const Stream *stream)
{
    if (stream->to.factory == NULL)
        return set_fault(streams->lane, "the worker answered a request that it had already completed", (Slice){"", 0});
    flight->answered = true;
    watchdog_send_begins(&streams->sender);
    return LANE_OK;
}

/* Handle the outcome of an answer to a request, the one at `index` of its batch. `right` means that the worker's message
 * was valid.
 */
static LaneState end_answer(Streams *streams, Flight *flight, uint32_t index, const Outcome *outcome, bool right)
{
    Stream *stream = &flight->streams[index];
    if (outcome->failed)
        stream_set_failed(stream);
    if (outcome->final && outcome->nothing_sent)
        stream_end(stream);
    else if (outcome->final)
        stream_close(stream);
    if (outcome->final && stream->paused)
        stream_clear_pause(streams, flight, stream);
    watchdog_send_ended(&streams->sender);
    return right ? stream_pause(streams, flight, index) : LANE_FAULT;
}

static LaneState handle_part(Streams *streams, Flight *flight, Reader *message)
{
    if (msgpack_get_array(message) != flight->count)
        return set_fault(streams->lane, "the worker returned too few or too many responses", (Slice){"", 0});
    for (uint32_t i = 0; i < flight->count; i++) {
        Stream *stream = &flight->streams[i];
        Outcome outcome;
        if (msgpack_get_nil(message))
            continue;
        LaneState state = begin_answer(streams, flight, stream);
        if (state == LANE_OK) {
            bool right = response_forward(streams->proxy, &stream->to, message, &outcome);
            state = end_answer(streams, flight, i, &outcome, right);
        }
        if (state != LANE_OK)
            return state;
    }
    if (message->malformed)
        return set_fault(streams->lane, "malformed message", (Slice){BATCH_PART_NAME, sizeof BATCH_PART_NAME - 1});
    return LANE_OK;
}

/* Handle a message with parts of several batches. */
static LaneState handle_parts(Streams *streams, Reader *message, Slice tag)
{
    LaneState state = LANE_OK;
    uint32_t count = msgpack_get_array(message);
    for (uint32_t i = 0; i < count && state == LANE_OK; i++) {
        uint32_t fields = msgpack_get_array(message);
        int64_t number = msgpack_get_int(message);
        Flight *flight = message->malformed ? NULL : find_flight(streams, number);
        if (flight == NULL || !flight->begun)
            return set_fault(streams->lane, "the worker sent a message about a batch that is not in flight", tag);
        state = handle_part(streams, flight, message);
        if (state == LANE_OK)
            msgpack_skip_rest(message, fields, PART_REF_SIZE);
    }
    return state == LANE_OK ? streams_add_credit(streams, count) : state;
}

static LaneState handle_text(Streams *streams, Flight *flight, char *output, Slice text)
{
    Outcome outcome;
    if (flight->count != 1)
        return set_fault(streams->lane, "the worker returned too few or too many responses", (Slice){"", 0});
    LaneState state = begin_answer(streams, flight, &flight->streams[0]);
    if (state != LANE_OK)
        return state;
    response_send_text(streams->proxy, &flight->streams[0].to, output, text, &outcome);
    return end_answer(streams, flight, 0, &outcome, true);
}

/* Handle a message with texts for several batches. */
static LaneState handle_texts(Streams *streams, Reader *message, Slice tag)
{
    char *output = strdup_slice(msgpack_get_text(message));
    Reader ids = *message;
    msgpack_skip(message, 0);
    uint32_t count = msgpack_get_array(&ids);
    LaneState state = LANE_OK;
    if (msgpack_get_array(message) != count || output == NULL)
        state = set_fault(streams->lane, output ? "malformed message" : "out of memory", tag);
    for (uint32_t i = 0; i < count && state == LANE_OK; i++) {
        Flight *flight = find_flight(streams, msgpack_get_int(&ids));
        Slice text = msgpack_get_text(message);
        if (flight == NULL || !flight->begun)
            state = set_fault(streams->lane, "the worker sent a message about a batch that is not in flight", tag);
        else
            state = handle_text(streams, flight, output, text);
    }
    free(output);
    return state == LANE_OK ? streams_add_credit(streams, count) : state;
}

static LaneState handle_returned(Streams *streams, Flight *flight, Reader *message, uint32_t fields)
{
    uint32_t count = fields > BATCH_RETURNED_reschedule ? msgpack_get_array(message) : 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t index = msgpack_get_int(message);
        if (message->malformed || index < 0 || index >= (int64_t)flight->count)
            return set_fault(streams->lane, "the worker rescheduled a request that does not exist", (Slice){"", 0});
        if (flight->streams[index].to.factory == NULL)
            continue; /* The last answer has already been sent. Do not send another one. */
        stream_close(&flight->streams[index]);
        if (flight->streams[index].paused)
            stream_clear_pause(streams, flight, &flight->streams[index]);
        flight->streams[index].reschedule = true;
    }
    pthread_mutex_lock(&streams->lock);
    flight->begun = flight->returned = true;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    return LANE_OK;
}

/* Complete a batch. `text` is the error if it failed, otherwise NULL. */
static LaneState finish_flight(Streams *streams, Flight *flight, const char *text)
{
    watchdog_send_begins(&streams->sender);
    flight_end(streams->proxy, flight, ERROR_INTERNAL, text, !streams->proxy->model->is_triton_python);
    watchdog_send_ended(&streams->sender);
    for (uint32_t i = 0; i < flight->count; i++)
        if (flight->streams[i].paused)
            stream_clear_pause(streams, flight, &flight->streams[i]);
    LaneState state = streams_send_credit(streams);
    pthread_mutex_lock(&streams->lock);
    flight->begun = true;
    remove_flight(streams, flight);
    bool idle = streams->flights == NULL;
    if (idle && streams->is_orphaned)
        lane_shutdown(streams->lane);
    pthread_mutex_unlock(&streams->lock);
    flight_unref(flight);
    if (idle && streams->has_check_timeout) {
        lane_set_timeout(streams->lane, 0);
        streams->has_check_timeout = false;
        watchdog_end(&streams->sender);
    }
    return state;
}

static LaneState handle_failed(Streams *streams, Flight *flight, Reader *message)
{
    Slice given = msgpack_get_text(message);
    if (message->malformed)
        return set_fault(streams->lane, "malformed message", (Slice){BATCH_FAILED_NAME, sizeof BATCH_FAILED_NAME - 1});
    char *text = strdup_printable(given);
    LaneState state = finish_flight(streams, flight, text ? text : "");
    free(text);
    return state;
}

static LaneState handle_message(Streams *streams, Reader *message)
{
    uint32_t fields = msgpack_get_array(message);
    Slice tag = msgpack_get_text(message);
    if (slice_is(tag, METRICS_NAME)) {
        metrics_apply(&streams->metrics, message);
        return message->malformed ? set_fault(streams->lane, "malformed message", tag) : streams_add_credit(streams, 1);
    }
    if (slice_is(tag, BATCH_PARTS_NAME))
        return handle_parts(streams, message, tag);
    if (slice_is(tag, BATCH_TEXTS_NAME))
        return handle_texts(streams, message, tag);
    int64_t number = msgpack_get_int(message);
    if (message->malformed)
        return set_fault(streams->lane, "malformed message", tag);
    if (slice_is(tag, ROOM_NAME)) {
        /* Reject an invalid limit: batches would wait forever. */
        if (number < 1 && !(number == 0 && streams->room > 0))
            return set_fault(streams->lane, "the worker set a batch limit below one", tag);
        pthread_mutex_lock(&streams->lock);
        streams->room = number;
        streams->is_retiring = number == 0;
        pthread_cond_broadcast(&streams->changed);
        pthread_mutex_unlock(&streams->lock);
        return LANE_OK;
    }
    Flight *flight = find_flight(streams, number);
    if (flight == NULL)
        return set_fault(streams->lane, "the worker sent a message about a batch that is not in flight", tag);
    if (slice_is(tag, BATCH_BEGUN_NAME) && !flight->begun) /* A batch begins only once. */
        return handle_begun(streams, flight);
    /* Before it begins, a batch can still be retried, which would repeat its answers. */
    if (slice_is(tag, BATCH_PART_NAME) && flight->begun) {
        LaneState state = handle_part(streams, flight, message);
        return state == LANE_OK ? streams_add_credit(streams, 1) : state;
    }
    if (slice_is(tag, BATCH_RETURNED_NAME) && flight->begun && streams->waits_for_return && !flight->returned)
        return handle_returned(streams, flight, message, fields);
    if (slice_is(tag, BATCH_DONE_NAME))
        return finish_flight(streams, flight, NULL);
    if (slice_is(tag, BATCH_FAILED_NAME))
        return handle_failed(streams, flight, message);
    return set_fault(streams->lane, "the worker sent a message that is not for a proxy", tag);
}

void *lane_reader_run(void *argument)
{
    Streams *streams = argument;
    bool unread = false;
    LaneState state;
    for (;;) {
        Reader message;
        state = streams->paused_count ? wait_for_message_or_wakeup(streams) : LANE_OK;
        if (state == LANE_OK)
            state = lane_receive(streams->lane, &message);
        if (state == LANE_UNREAD &&
            /* The kernel reports a reset once, before the data that the worker has sent (unix_stream_recvmsg). */
            !unread) {
            unread = true;
            continue;
        }
        if (state == LANE_TIMEOUT) {
            state = streams_send_credit(streams); /* Send the credit now, because the worker may be waiting for it. */
            state = state == LANE_OK ? check_flights(streams) : state;
        } else if (state == LANE_OK)
            state = handle_message(streams, &message);
        /* Make the checks even if the worker sends without a pause. */
        if (state == LANE_OK && streams->has_check_timeout && clock_ns() - streams->checked_ns > check_interval_ns)
            state = check_flights(streams);
        if (state != LANE_OK)
            break;
        if (streams->is_retiring)
            streams = streams_leave_lane(streams);
    }
    if (streams_handle_lost_lane(streams, state == LANE_CLOSED && unread ? LANE_UNREAD : state)) {
        Proxy *proxy = streams->proxy;
        streams_free(streams);
        proxy_end(proxy);
    }
    return NULL;
}
