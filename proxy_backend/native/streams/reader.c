/* The thread of a lane: it passes answers on as they come, and looks around while a batch is under way. */
#define _GNU_SOURCE
#include "streams/reader.h"

#include "base/clock.h"
#include "base/text.h"
#include "proxy/attachment.h"
#include "proxy/life.h"
#include "streams/shared.h"
#include "wire/protocol.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between two looks at who is still there. */
static const uint64_t tick_ns = 125000000;
/* After so long, a stream that is held goes on if others wait for its worker. */
static const uint64_t most_held_ns = 1000000000;
/* Parts that are given back to the worker at once. */
enum { CREDIT = 8 };

/* With the lock held; whoever calls holds it now. */
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
    return flight; /* it stays: none but the reader takes a batch off that was sent */
}

static LaneState fault(Lane *lane, const char *what, Text tag)
{
    snprintf(lane->fault, sizeof lane->fault, "%s: %.*s", what, (int)(tag.size < 40 ? tag.size : 40), tag.start);
    return LANE_FAULT;
}

/* A worker that does not hear it any more may have answered before it went: that is what counts. */
static LaneState tell(Streams *streams, const Buffer *message)
{
    pthread_mutex_lock(&streams->lock);
    LaneState state = lane_send(streams->lane, message);
    pthread_mutex_unlock(&streams->lock);
    return state == LANE_UNREAD ? LANE_OK : state;
}

static LaneState give_credit(Streams *streams)
{
    Buffer message = {0};
    put_credit(&message, streams->uncredited);
    LaneState state = tell(streams, &message);
    buffer_free(&message);
    streams->uncredited = 0;
    return state;
}

static LaneState take_credit(Streams *streams)
{
    return ++streams->uncredited < CREDIT ? LANE_OK : give_credit(streams);
}

_Static_assert((int)HOLD_SIZE == (int)CANCEL_SIZE && (int)GO_SIZE == (int)CANCEL_SIZE, "tell_of says all of them");

/* Say something of one request: Cancel, Hold or Go. */
static LaneState tell_of(Streams *streams, const char *what, const Flight *flight, uint32_t index)
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

/* Have the worker wait if the caller of a stream has to read first. */
static LaneState hold(Streams *streams, Flight *flight, uint32_t index)
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

/* What the caller takes to read is none of the worker's time. */
static void let_go(Streams *streams, Flight *flight, Stream *stream)
{
    stream->held = false;
    streams->held--;
    if (--flight->held == 0 && flight->overdue_ns)
        flight->overdue_ns += steady_ns() - flight->held_ns;
}

/* Whether somebody waits for who makes these answers: another of the batch, or a batch that no worker has begun (this one
 * itself does until its `execute` returns). */
static bool others_wait(const Streams *streams, const Flight *flight)
{
    unsigned itself = streams->until_returned && !flight->returned;
    for (uint32_t i = 0; i < flight->count; i++)
        if (!flight->streams[i].held && flight->streams[i].to.factory)
            return true;
    return __atomic_load_n(&streams->proxy->model->waiting, __ATOMIC_RELAXED) > itself;
}

/* One slow caller shall not stop others for good; and it may be the same one, which reads two streams in turn. */
static void relent(Streams *streams, Flight *flight, uint64_t now_ns)
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

/* Have the worker go on with what was held of a batch, if its callers have read. Where they have gone, it gets a Cancel. */
static LaneState go_on(Streams *streams, Flight *flight)
{
    LaneState state = LANE_OK;
    for (uint32_t i = 0; flight->held && i < flight->count && state == LANE_OK; i++) {
        Stream *stream = &flight->streams[i];
        if (!stream->held || flow_is_full(stream->flow, streams->bell) || is_gone(stream->to.factory))
            continue;
        let_go(streams, flight, stream);
        state = tell_of(streams, GO_NAME, flight, i);
    }
    return state;
}

/* Tell the worker if the client of a request has gone: not at once, for tritonserver's gRPC part (2.51) may use what it has
 * freed where a request ends in the moment in which it is cancelled. */
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
        let_go(streams, flight, stream);
    return tell_of(streams, CANCEL_NAME, flight, index);
}

/* Whether a batch cannot be tried again: tritonserver has its requests back, or a part of its answers has been sent. */
static bool is_final(const Streams *streams, const Flight *flight)
{
    return flight->begun && (!streams->until_returned || flight->returned || flight->answered);
}

/* What the dispatcher is told of a batch. */
static Loss loss_of(const Streams *streams, const Flight *flight)
{
    return (Loss){.losses = flight->losses,
        .requests = flight->count,
        .in_row = flight->losses ? flight->in_row + 1 : 0,
        .final = is_final(streams, flight)};
}

static void judge_flight(Streams *streams, Flight *flight, uint64_t now_ns)
{
    double wait_s = 0;
    bool retry = false;
    Loss loss = loss_of(streams, flight);
    loss.taken_ns = flight->taken_ns;
    char *text = judge_overdue(streams->proxy, &loss, true, &wait_s, &retry);
    flight->taken_ns = loss.taken_ns;
    /* Not to be waited for: the worker is about to be ended, and the lane with it. */
    flight->overdue_ns = text || retry ? 0 : now_ns + (uint64_t)(wait_s * 1e9);
    if (text == NULL || loss.final) { /* the end of the lane says more */
        free(text);
        return;
    }
    pthread_mutex_lock(&streams->lock);
    free(flight->failure);
    flight->failure = text;
    flight->whole = loss.whole;
    pthread_mutex_unlock(&streams->lock);
}

/* Tell the worker whose clients have gone, and see whether a batch has taken too long. */
static LaneState look_around(Streams *streams)
{
    LaneState state = LANE_OK;
    uint64_t now_ns = streams->looked_ns = steady_ns();
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights; /* new ones come before it, and none but this thread takes one off that began */
    pthread_mutex_unlock(&streams->lock);
    while (flight && state == LANE_OK) {
        pthread_mutex_lock(&streams->lock);
        bool begun = flight->begun;
        Flight *next = flight->next;
        pthread_mutex_unlock(&streams->lock);
        for (uint32_t i = 0; begun && i < flight->count && state == LANE_OK; i++)
            state = look_for(streams, flight, i, now_ns);
        relent(streams, flight, now_ns);
        if (state == LANE_OK)
            state = go_on(streams, flight);
        if (begun && flight->overdue_ns && flight->held == 0 && now_ns > flight->overdue_ns)
            judge_flight(streams, flight, now_ns);
        flight = next;
    }
    return state;
}

/* A caller has read: see which. */
static LaneState rung(Streams *streams)
{
    LaneState state = LANE_OK;
    bell_hush(streams->bell);
    pthread_mutex_lock(&streams->lock);
    Flight *flight = streams->flights; /* see look_around */
    pthread_mutex_unlock(&streams->lock);
    while (flight && state == LANE_OK) {
        state = go_on(streams, flight);
        pthread_mutex_lock(&streams->lock);
        flight = flight->next;
        pthread_mutex_unlock(&streams->lock);
    }
    return state;
}

/* Wait until the worker says something, or a caller has read of what is held: LANE_SILENT, when that was seen to. */
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
            let_go(streams, flight, stream);
        sent(&streams->sender);
        if (!right)
            return LANE_FAULT;
        LaneState state = hold(streams, flight, i);
        if (state != LANE_OK)
            return state;
    }
    if (message->malformed)
        return fault(streams->lane, "malformed message", (Text){BATCH_PART_NAME, sizeof BATCH_PART_NAME - 1});
    return take_credit(streams);
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
            let_go(streams, flight, &flight->streams[index]);
        flight->streams[index].reschedule = true;
    }
    pthread_mutex_lock(&streams->lock);
    flight->begun = flight->returned = true;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    return LANE_OK;
}

/* `text`: what the batch failed with. */
static LaneState done(Streams *streams, Flight *flight, const char *text)
{
    sending(&streams->sender);
    flight_end(flight, ERROR_INTERNAL, text);
    sent(&streams->sender);
    for (uint32_t i = 0; i < flight->count; i++)
        if (flight->streams[i].held)
            let_go(streams, flight, &flight->streams[i]);
    LaneState state = streams->uncredited ? give_credit(streams) : LANE_OK;
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
        return message->malformed ? fault(streams->lane, "malformed message", tag) : take_credit(streams);
    }
    int64_t number = get_int(message);
    if (message->malformed)
        return fault(streams->lane, "malformed message", tag);
    if (text_is(tag, ROOM_NAME)) {
        if (number < 1) /* else its batches would wait for ever */
            return fault(streams->lane, "the worker has room for less than one batch", tag);
        pthread_mutex_lock(&streams->lock);
        streams->room = number;
        pthread_cond_broadcast(&streams->changed);
        pthread_mutex_unlock(&streams->lock);
        return LANE_OK;
    }
    Flight *flight = find(streams, number);
    if (flight == NULL)
        return fault(streams->lane, "the worker spoke of a batch that is not under way", tag);
    if (text_is(tag, BATCH_BEGUN_NAME) && !flight->begun) /* else it could begin anew for ever */
        return has_begun(streams, flight);
    if (text_is(tag, BATCH_PART_NAME) && flight->begun) /* else it would be tried again with an answer given */
        return pass_part(streams, flight, message);
    if (text_is(tag, BATCH_RETURNED_NAME) && flight->begun && streams->until_returned && !flight->returned)
        return has_returned(streams, flight, message, fields);
    if (text_is(tag, BATCH_DONE_NAME))
        return done(streams, flight, NULL);
    if (text_is(tag, BATCH_FAILED_NAME))
        return failed_with(streams, flight, message);
    return fault(streams->lane, "the worker said something that is not for a proxy", tag);
}

/* What to answer to a batch whose lane is lost; NULL: it goes to another worker. With the lock held. */
static char *judge(Streams *streams, Flight *flight, bool unread, const char *text, bool others)
{
    if (is_final(streams, flight))
        return strdup(text);
    if (unread && !flight->begun)
        return NULL;
    if (text && !others)
        return strdup(text);
    bool first = flight->losses++ == 0;
    Loss loss = loss_of(streams, flight);
    loss.in_row = first ? 0 : loss.in_row;
    char *failure = judge_loss(streams->proxy, &loss);
    flight->whole = failure && loss.whole;
    return failure;
}

/* It is tried again, as if it had never been sent. */
static void begin_anew(Flight *flight)
{
    flight->begun = false;
    flight->overdue_ns = 0;
    flight->held = 0;
    for (uint32_t i = 0; i < flight->count; i++)
        flight->streams[i].cancelled = flight->streams[i].held = false;
}

/* The lane has ended: answer what had begun, and let what had not be sent again, if it may. True: tritonserver knows the
 * instance no more. From its broadcast on, the lock must not be taken again: who joins this thread may hold it. */
static bool lost(Streams *streams, LaneState state)
{
    Proxy *proxy = streams->proxy;
    pthread_mutex_lock(&streams->lock);
    if (state == LANE_CLOSED && streams->lane->was_reset)
        state = LANE_UNREAD;
    char *text = NULL;
    bool some_begun = false;
    Loss final = {.losses = 1, .requests = 1, .final = true};
    for (Flight *flight = streams->flights; flight; flight = flight->next)
        some_begun |= is_final(streams, flight);
    if (state == LANE_FAULT)
        text = texted("model %s: %s", proxy->model->name, streams->lane->fault);
    else if (streams->ending && !streams->alone)
        text = texted("model %s: it is unloaded", proxy->model->name);
    else if (some_begun)
        text = judge_loss(proxy, &final);
    if (text == NULL && some_begun)
        text = texted("model %s: its worker is lost", proxy->model->name);
    Flight *all = streams->flights;
    for (Flight *flight = all; flight; flight = flight->next) {
        if (flight->failure == NULL)
            flight->failure = judge(streams, flight, state == LANE_UNREAD, text, some_begun);
        if (flight->failure)
            flight->begun = true; /* as far as execute is concerned */
        else
            begin_anew(flight);
        flight->under_way = false;
    }
    drop_lane(proxy);
    free(streams->fault);
    streams->fault = state == LANE_FAULT && text ? strdup(text) : NULL;
    streams->flights = NULL;
    streams->under_way = streams->room = 0;
    bool alone = streams->alone; /* it comes to be so only while there are batches under way */
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    while (all) {
        Flight *flight = all;
        all = flight->next;
        sending(&streams->sender);
        if (flight->failure)
            flight_end(flight, ERROR_UNAVAILABLE, flight->failure);
        flight_let_go(flight);
        sent(&streams->sender);
    }
    watch_end(&streams->sender);
    free(text);
    return alone;
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
        if (state == LANE_UNREAD && !unread) { /* said once, and before what it has sent (unix_stream_recvmsg) */
            unread = true;
            continue;
        }
        if (state == LANE_SILENT)
            state = look_around(streams);
        else if (state == LANE_OK)
            state = heard(streams, &message);
        /* Also while it never is silent, whatever it says. */
        if (state == LANE_OK && streams->ticking && steady_ns() - streams->looked_ns > tick_ns)
            state = look_around(streams);
        if (state != LANE_OK)
            break;
    }
    if (lost(streams, state == LANE_CLOSED && unread ? LANE_UNREAD : state)) {
        Proxy *proxy = streams->proxy;
        streams_free(streams);
        end_proxy(proxy);
    }
    return NULL;
}
