/* The thread of a lane: passes answers on as they come, and does periodic checks while a batch is in flight. */
#define _GNU_SOURCE
#include "streams/reader.h"

#include "base/clock.h"
#include "base/text.h"
#include "proxy/life.h"
#include "streams/holds.h"
#include "streams/losses.h"
#include "streams/retiring.h"
#include "streams/shared.h"
#include "streams/telling.h"
#include "wire/protocol.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The interval between checks for disconnected clients. */
static const uint64_t tick_ns = 125000000;

/* With the lock held; the caller keeps holding it. */
static void take_off(Streams *streams, Flight *flight)
{
    Flight **link = &streams->flights;
    while (*link != flight)
        link = &(*link)->next;
    *link = flight->next;
    flight->under_way = false;
    streams->under_way--;
    pthread_cond_broadcast(&streams->changed);
}

static Flight *find(Streams *streams, int64_t id)
{
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights;
    while (flight && flight->id != id)
        flight = flight->next;
    pthread_mutex_unlock(&streams->lock);
    return flight; /* it stays: only the reader removes a batch that was sent */
}

static LaneState fault(Lane *lane, const char *what, Text tag)
{
    snprintf(lane->fault, sizeof lane->fault, "%s: %.*s", what, (int)(tag.size < 40 ? tag.size : 40), tag.start);
    return LANE_FAULT;
}

/* Notify the worker if the client of a request has disconnected, with a delay: tritonserver's gRPC frontend (2.51)
 * may use freed memory if a request ends at the moment of its cancellation.
 */
static LaneState look_for(Streams *streams, Flight *flight, uint32_t index, uint64_t now_ns)
{
    Stream *stream = &flight->streams[index];
    if (stream->to.factory == NULL || stream->cancelled || !is_gone(stream->to.factory))
        return LANE_OK;
    stream->gone_ns = stream->gone_ns ? stream->gone_ns : now_ns;
    if (now_ns - stream->gone_ns < tick_ns)
        return LANE_OK;
    stream->cancelled = true;
    if (stream->held)
        stream_let_go(streams, flight, stream);
    return tell_of(streams, CANCEL_NAME, flight, index);
}

/* Notify the worker of disconnected clients, and check whether a batch has taken too long. */
static LaneState look_around(Streams *streams)
{
    LaneState state = LANE_OK;
    uint64_t now_ns = streams->looked_ns = steady_ns();
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights; /* new ones go before it; only this thread removes one that began */
    pthread_mutex_unlock(&streams->lock);
    while (flight && state == LANE_OK) {
        pthread_mutex_lock(&streams->lock);
        bool begun = flight->begun;
        Flight *next = flight->next;
        pthread_mutex_unlock(&streams->lock);
        for (uint32_t i = 0; begun && i < flight->count && state == LANE_OK; i++)
            state = look_for(streams, flight, i, now_ns);
        flight_relent(streams, flight, now_ns);
        if (state == LANE_OK)
            state = flight_go_on(streams, flight);
        if (begun && flight->overdue_ns && flight->held == 0 && now_ns > flight->overdue_ns)
            flight_judge(streams, flight, now_ns);
        flight = next;
    }
    return state;
}

/* A caller has read: find out which one. */
static LaneState rung(Streams *streams)
{
    LaneState state = LANE_OK;
    bell_hush(streams->bell);
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights; /* see look_around */
    pthread_mutex_unlock(&streams->lock);
    while (flight && state == LANE_OK) {
        state = flight_go_on(streams, flight);
        pthread_mutex_lock(&streams->lock);
        flight = flight->next;
        pthread_mutex_unlock(&streams->lock);
    }
    return state;
}

/* Wait until the worker sends something or a caller has read from a held stream. Returns LANE_SILENT when the latter
 * was handled.
 */
static LaneState await_both(Streams *streams)
{
    struct pollfd both[] = {{.fd = streams->lane->fd, .events = POLLIN}, {.fd = streams->bell->fd, .events = POLLIN}};
    int ready = poll(both, 2, (int)(tick_ns / 1000000));
    LaneState state = ready > 0 && both[1].revents ? rung(streams) : LANE_OK;
    return state == LANE_OK && (ready <= 0 || both[0].revents == 0) ? LANE_SILENT : state;
}

static LaneState has_begun(Streams *streams, Flight *flight)
{
    double limit_s = streams->proxy->execution_timeout_s;
    if (limit_s > 0)
        flight->overdue_ns = steady_ns() + (uint64_t)(limit_s * 1e9);
    flight->taken_ns = 0;
    if (!streams->ticking) {
        lane_set_patience(streams->lane, (double)tick_ns / 1e9);
        streams->looked_ns = steady_ns();
    }
    streams->ticking = true;
    watch_begin(&streams->sender, streams->proxy->model->name);
    pthread_mutex_lock(&streams->lock);
    flight->begun = true;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    return LANE_OK;
}

static LaneState pass_part(Streams *streams, Flight *flight, Reader *message)
{
    if (get_array(message) != flight->count)
        return fault(streams->lane, "the worker gave another number of responses than of requests", (Text){"", 0});
    for (uint32_t i = 0; i < flight->count; i++) {
        Stream *stream = &flight->streams[i];
        Outcome outcome;
        if (get_nil(message))
            continue;
        if (stream->to.factory == NULL)
            return fault(streams->lane, "the worker answered a request that it had ended", (Text){"", 0});
        flight->answered = true;
        sending(&streams->sender);
        bool right = pass_response(streams->proxy, &stream->to, message, &outcome);
        if (outcome.failed)
            stream_set_failed(stream);
        if (outcome.final && outcome.silent)
            stream_end(stream);
        else if (outcome.final)
            stream_close(stream);
        if (outcome.final && stream->held)
            stream_let_go(streams, flight, stream);
        sent(&streams->sender);
        if (!right)
            return LANE_FAULT;
        LaneState state = stream_hold(streams, flight, i);
        if (state != LANE_OK)
            return state;
    }
    if (message->malformed)
        return fault(streams->lane, "malformed message", (Text){BATCH_PART_NAME, sizeof BATCH_PART_NAME - 1});
    return LANE_OK;
}

/* Parts of several batches that came in one message. */
static LaneState pass_parts(Streams *streams, Reader *message, Text tag)
{
    LaneState state = LANE_OK;
    uint32_t count = get_array(message);
    for (uint32_t i = 0; i < count && state == LANE_OK; i++) {
        uint32_t fields = get_array(message);
        int64_t number = get_int(message);
        Flight *flight = message->malformed ? NULL : find(streams, number);
        if (flight == NULL || !flight->begun)
            return fault(streams->lane, "the worker spoke of a batch that is not under way", tag);
        state = pass_part(streams, flight, message);
        if (state == LANE_OK)
            skip_rest(message, fields, PART_REF_SIZE);
    }
    return state == LANE_OK ? take_credit(streams, count) : state;
}

static LaneState has_returned(Streams *streams, Flight *flight, Reader *message, uint32_t fields)
{
    uint32_t count = fields > BATCH_RETURNED_reschedule ? get_array(message) : 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t index = get_int(message);
        if (message->malformed || index < 0 || index >= (int64_t)flight->count)
            return fault(streams->lane, "the worker has queued a request again that there is not", (Text){"", 0});
        if (flight->streams[index].to.factory == NULL)
            continue; /* its last answer has been sent: tritonserver would answer it twice */
        stream_close(&flight->streams[index]);
        if (flight->streams[index].held)
            stream_let_go(streams, flight, &flight->streams[index]);
        flight->streams[index].reschedule = true;
    }
    pthread_mutex_lock(&streams->lock);
    flight->begun = flight->returned = true;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    return LANE_OK;
}

/* `text`: why the batch failed. */
static LaneState done(Streams *streams, Flight *flight, const char *text)
{
    sending(&streams->sender);
    flight_end(streams->proxy, flight, ERROR_INTERNAL, text, !streams->proxy->model->details);
    sent(&streams->sender);
    for (uint32_t i = 0; i < flight->count; i++)
        if (flight->streams[i].held)
            stream_let_go(streams, flight, &flight->streams[i]);
    LaneState state = give_credit(streams);
    pthread_mutex_lock(&streams->lock);
    flight->begun = true;
    take_off(streams, flight);
    bool idle = streams->flights == NULL;
    if (idle && streams->alone)
        lane_hang_up(streams->lane);
    pthread_mutex_unlock(&streams->lock);
    flight_let_go(flight);
    if (idle && streams->ticking) {
        lane_set_patience(streams->lane, 0);
        streams->ticking = false;
        watch_end(&streams->sender);
    }
    return state;
}

static LaneState failed_with(Streams *streams, Flight *flight, Reader *message)
{
    Text given = get_text(message);
    if (message->malformed)
        return fault(streams->lane, "malformed message", (Text){BATCH_FAILED_NAME, sizeof BATCH_FAILED_NAME - 1});
    char *text = text_without_nul(given);
    LaneState state = done(streams, flight, text ? text : "");
    free(text);
    return state;
}

static LaneState heard(Streams *streams, Reader *message)
{
    uint32_t fields = get_array(message);
    Text tag = get_text(message);
    if (text_is(tag, METRICS_NAME)) {
        metrics_apply(&streams->metrics, message);
        return message->malformed ? fault(streams->lane, "malformed message", tag) : take_credit(streams, 1);
    }
    if (text_is(tag, BATCH_PARTS_NAME))
        return pass_parts(streams, message, tag);
    int64_t number = get_int(message);
    if (message->malformed)
        return fault(streams->lane, "malformed message", tag);
    if (text_is(tag, ROOM_NAME)) {
        if (number < 1 && !(number == 0 && streams->room > 0)) /* otherwise its batches would wait forever */
            return fault(streams->lane, "the worker has room for less than one batch", tag);
        pthread_mutex_lock(&streams->lock);
        streams->room = number;
        streams->retires = number == 0;
        pthread_cond_broadcast(&streams->changed);
        pthread_mutex_unlock(&streams->lock);
        return LANE_OK;
    }
    Flight *flight = find(streams, number);
    if (flight == NULL)
        return fault(streams->lane, "the worker spoke of a batch that is not under way", tag);
    if (text_is(tag, BATCH_BEGUN_NAME) && !flight->begun) /* otherwise it could begin again forever */
        return has_begun(streams, flight);
    if (text_is(tag, BATCH_PART_NAME) && flight->begun) { /* otherwise it would be retried after an answer was given */
        LaneState state = pass_part(streams, flight, message);
        return state == LANE_OK ? take_credit(streams, 1) : state;
    }
    if (text_is(tag, BATCH_RETURNED_NAME) && flight->begun && streams->until_returned && !flight->returned)
        return has_returned(streams, flight, message, fields);
    if (text_is(tag, BATCH_DONE_NAME))
        return done(streams, flight, NULL);
    if (text_is(tag, BATCH_FAILED_NAME))
        return failed_with(streams, flight, message);
    return fault(streams->lane, "the worker said something that is not for a proxy", tag);
}

void *read_lane(void *argument)
{
    Streams *streams = argument;
    bool unread = false;
    LaneState state;
    for (;;) {
        Reader message;
        state = streams->held ? await_both(streams) : LANE_OK;
        if (state == LANE_OK)
            state = lane_receive(streams->lane, &message);
        if (state == LANE_UNREAD &&
            !unread) { /* reported once, and before the data it has sent (unix_stream_recvmsg) */
            unread = true;
            continue;
        }
        if (state == LANE_SILENT) {
            state = give_credit(streams); /* the worker may wait for it */
            state = state == LANE_OK ? look_around(streams) : state;
        } else if (state == LANE_OK)
            state = heard(streams, &message);
        /* Do the checks even if the worker sends without a pause. */
        if (state == LANE_OK && streams->ticking && steady_ns() - streams->looked_ns > tick_ns)
            state = look_around(streams);
        if (state != LANE_OK)
            break;
        if (streams->retires)
            streams = streams_part(streams);
    }
    if (streams_lost(streams, state == LANE_CLOSED && unread ? LANE_UNREAD : state)) {
        Proxy *proxy = streams->proxy;
        streams_free(streams);
        end_proxy(proxy);
    }
    return NULL;
}
