/* Batches that are answered many times, or at any time, while tritonserver goes on:
 *
 *     execute ──▶ streams_begin: Batch ──▶ worker         tritonserver's thread sends a batch and waits until it has begun
 *     reader ◀── BatchBegun, BatchPart…, BatchDone        a thread for each lane passes answers on
 *
 * A client that has gone shows when a response factory is asked: with each answer, and every TICK_NS while a batch is
 * under way. What has been answered in part cannot be tried again, so a batch whose worker is lost after it began fails;
 * one that had not begun goes to the next worker.
 */
#define _GNU_SOURCE
#include "streams.h"

#include "metrics.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Between two looks at who is still there. */
static const uint64_t tick_ns = 250000000;
/* Parts that are given back to the worker at once. */
enum { CREDIT = 8 };

/* One request of a batch. */
typedef struct {
    Receiver to; /* without a factory: its last answer has been sent */
    bool cancelled, reschedule;
    bool failed; /* also read by the other thread, without the lock */
} Stream;

/* A batch under way. Who sends it and the list of those under way hold it. */
typedef struct Flight {
    struct Flight *next;
    int64_t id;
    int holders, losses;
    bool under_way, begun, returned;
    uint64_t overdue_ns; /* 0: never */
    char *failure;       /* of a lost lane: what to answer */
    uint32_t count;
    Stream streams[];
} Flight;

struct Streams {
    Proxy *proxy;
    bool until_returned; /* a batch holds back the next one until BatchReturned, not just BatchBegun */
    /* Guards what follows, the proxy, and sending on the lane. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Flight *flights;
    int64_t under_way, room;
    bool reading; /* there is, or was, a reader: it is to be joined */
    bool ending;
    pthread_t reader;
    /* The reader's own. */
    Lane *lane;
    int64_t uncredited;
    uint64_t looked_ns;
    bool ticking;
    Metrics metrics;
};

Streams *streams_new(Proxy *proxy)
{
    Streams *streams = calloc(1, sizeof *streams);
    if (streams == NULL)
        return NULL;
    streams->proxy = proxy;
    streams->until_returned = proxy->model->details;
    pthread_mutex_init(&streams->lock, NULL);
    pthread_cond_init(&streams->changed, NULL);
    return streams;
}

/* ── flights ────────────────────────────────────────────────────────────────────────────────────── */

static void set_failed(Stream *stream)
{
    __atomic_store_n(&stream->failed, true, __ATOMIC_RELAXED);
}

/* No more answers come for a request. */
static void close_stream(Stream *stream)
{
    if (stream->to.factory)
        failed(TRITONBACKEND_ResponseFactoryDelete(stream->to.factory));
    stream->to.factory = NULL;
}

static void let_go(Flight *flight)
{
    if (__atomic_sub_fetch(&flight->holders, 1, __ATOMIC_ACQ_REL))
        return;
    for (uint32_t i = 0; i < flight->count; i++) {
        Receiver *to = &flight->streams[i].to;
        close_stream(&flight->streams[i]);
        for (uint32_t k = 0; k < to->requested_count; k++)
            free(to->requested[k]);
        free(to->requested);
    }
    free(flight->failure);
    free(flight);
}

/* Remember of a request what its answers need. */
static bool remember(Receiver *to, TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    if (failed(TRITONBACKEND_ResponseFactoryNew(&to->factory, request))) {
        to->factory = NULL;
        return false;
    }
    failed(TRITONBACKEND_RequestOutputCount(request, &count));
    to->requested = calloc(count + 1, sizeof *to->requested);
    for (uint32_t i = 0; i < count && to->requested; i++) {
        const char *name;
        char *copy = failed(TRITONBACKEND_RequestOutputName(request, i, &name)) ? NULL : strdup(name);
        if (copy == NULL)
            return false;
        to->requested[to->requested_count++] = copy;
    }
    return to->requested != NULL;
}

static Flight *new_flight(TRITONBACKEND_Request **requests, uint32_t count)
{
    Flight *flight = calloc(1, sizeof *flight + count * sizeof *flight->streams);
    if (flight == NULL)
        return NULL;
    flight->holders = 1;
    flight->count = count;
    for (uint32_t i = 0; i < count; i++)
        if (!remember(&flight->streams[i].to, requests[i])) {
            let_go(flight);
            return NULL;
        }
    return flight;
}

/* Say that nothing more comes, with an error to all that have not been answered to the end if there is one. */
static void end_flight(Flight *flight, TRITONSERVER_Error_Code code, const char *text)
{
    for (uint32_t i = 0; i < flight->count; i++) {
        Stream *stream = &flight->streams[i];
        if (stream->to.factory == NULL)
            continue;
        if (text) {
            set_failed(stream);
            send_error(&stream->to, code, text);
        } else {
            failed(TRITONBACKEND_ResponseFactorySendFlags(stream->to.factory, RESPONSE_FINAL));
        }
        close_stream(stream);
    }
}

/* With the lock held. */
static void add(Streams *streams, Flight *flight)
{
    flight->holders++;
    flight->under_way = true;
    flight->next = streams->flights;
    streams->flights = flight;
    streams->under_way++;
}

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

/* ── the reader ─────────────────────────────────────────────────────────────────────────────────── */

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
    put_array(&message, 2);
    put_string(&message, "Credit");
    put_int(&message, streams->uncredited);
    LaneState state = tell(streams, &message);
    buffer_free(&message);
    streams->uncredited = 0;
    return state;
}

static LaneState take_credit(Streams *streams)
{
    return ++streams->uncredited < CREDIT ? LANE_OK : give_credit(streams);
}

/* Tell the worker if the client of a request has gone. */
static LaneState look_for(Streams *streams, Flight *flight, uint32_t index)
{
    Stream *stream = &flight->streams[index];
    bool gone = false;
    if (stream->to.factory == NULL || stream->cancelled ||
        failed(TRITONBACKEND_ResponseFactoryIsCancelled(stream->to.factory, &gone)) || !gone)
        return LANE_OK;
    Buffer message = {0};
    stream->cancelled = true;
    put_array(&message, 3);
    put_string(&message, "Cancel");
    put_int(&message, flight->id);
    put_int(&message, index);
    LaneState state = tell(streams, &message);
    buffer_free(&message);
    return state;
}

static void judge_flight(Streams *streams, Flight *flight, uint64_t now_ns)
{
    double wait_s = 0;
    bool retry = false;
    char *text = judge_overdue(streams->proxy, true, &wait_s, &retry);
    /* Not to be waited for: the worker is about to be ended, and the lane with it. */
    flight->overdue_ns = text || retry ? 0 : now_ns + (uint64_t)(wait_s * 1e9);
    free(text);
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
            state = look_for(streams, flight, i);
        if (begun && flight->overdue_ns && now_ns > flight->overdue_ns)
            judge_flight(streams, flight, now_ns);
        flight = next;
    }
    return state;
}

static LaneState has_begun(Streams *streams, Flight *flight)
{
    double limit_s = streams->proxy->execution_timeout_s;
    if (limit_s > 0)
        flight->overdue_ns = steady_ns() + (uint64_t)(limit_s * 1e9);
    if (!streams->ticking)
        lane_set_patience(streams->lane, (double)tick_ns / 1e9);
    streams->ticking = true;
    pthread_mutex_lock(&streams->lock);
    flight->begun = true;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    return LANE_OK;
}

static LaneState pass_part(Streams *streams, Flight *flight, Reader *message)
{
    LaneState state = LANE_OK;
    if (get_array(message) != flight->count)
        return fault(streams->lane, "the worker gave another number of responses than of requests", (Text){"", 0});
    for (uint32_t i = 0; i < flight->count && state == LANE_OK; i++) {
        Stream *stream = &flight->streams[i];
        Outcome outcome;
        if (get_nil(message))
            continue;
        if (stream->to.factory == NULL)
            return fault(streams->lane, "the worker answered a request that it had ended", (Text){"", 0});
        if (!pass_response(streams->proxy, &stream->to, message, &outcome))
            return LANE_FAULT;
        if (outcome.failed)
            set_failed(stream);
        if (outcome.final)
            close_stream(stream);
        else
            state = look_for(streams, flight, i);
    }
    if (message->malformed)
        return fault(streams->lane, "malformed message", (Text){"BatchPart", 9});
    if (state == LANE_OK)
        state = take_credit(streams);
    if (state == LANE_OK && steady_ns() - streams->looked_ns > tick_ns)
        state = look_around(streams);
    return state;
}

static LaneState has_returned(Streams *streams, Flight *flight, Reader *message, uint32_t fields)
{
    uint32_t count = fields > 2 ? get_array(message) : 0;
    for (uint32_t i = 0; i < count; i++) {
        int64_t index = get_int(message);
        if (message->malformed || index < 0 || index >= (int64_t)flight->count)
            return fault(streams->lane, "the worker has queued a request again that there is not", (Text){"", 0});
        close_stream(&flight->streams[index]);
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
    end_flight(flight, ERROR_INTERNAL, text);
    LaneState state = streams->uncredited ? give_credit(streams) : LANE_OK;
    pthread_mutex_lock(&streams->lock);
    flight->begun = true;
    take_off(streams, flight);
    bool idle = streams->flights == NULL;
    pthread_mutex_unlock(&streams->lock);
    let_go(flight);
    if (idle && streams->ticking) {
        lane_set_patience(streams->lane, 0);
        streams->ticking = false;
    }
    return state;
}

static LaneState failed_with(Streams *streams, Flight *flight, Reader *message)
{
    Text given = get_text(message);
    if (message->malformed)
        return fault(streams->lane, "malformed message", (Text){"BatchFailed", 11});
    char *text = text_copy(given);
    LaneState state = done(streams, flight, text ? text : "");
    free(text);
    return state;
}

static LaneState heard(Streams *streams, Reader *message)
{
    uint32_t fields = get_array(message);
    Text tag = get_text(message);
    if (text_is(tag, "Metrics")) {
        metrics_apply(&streams->metrics, message);
        return message->malformed ? fault(streams->lane, "malformed message", tag) : take_credit(streams);
    }
    int64_t number = get_int(message);
    if (message->malformed)
        return fault(streams->lane, "malformed message", tag);
    if (text_is(tag, "Room")) {
        pthread_mutex_lock(&streams->lock);
        streams->room = number;
        pthread_cond_broadcast(&streams->changed);
        pthread_mutex_unlock(&streams->lock);
        return LANE_OK;
    }
    Flight *flight = find(streams, number);
    if (flight == NULL)
        return fault(streams->lane, "the worker spoke of a batch that is not under way", tag);
    if (text_is(tag, "BatchBegun"))
        return has_begun(streams, flight);
    if (text_is(tag, "BatchPart") && flight->begun) /* else it would be tried again with an answer given */
        return pass_part(streams, flight, message);
    if (text_is(tag, "BatchReturned") && flight->begun)
        return has_returned(streams, flight, message, fields);
    if (text_is(tag, "BatchDone"))
        return done(streams, flight, NULL);
    if (text_is(tag, "BatchFailed"))
        return failed_with(streams, flight, message);
    return fault(streams->lane, "the worker said something that is not for a proxy", tag);
}

/* What to answer to a batch whose lane is lost; NULL: it goes to another worker. With the lock held. */
static char *judge(Streams *streams, Flight *flight, bool unread, const char *text, bool others)
{
    if (flight->begun)
        return strdup(text);
    if (unread)
        return NULL;
    flight->losses++;
    return text && !others ? strdup(text) : judge_loss(streams->proxy, flight->losses);
}

/* The lane has ended: answer what had begun, and let what had not be sent again, if it may. */
static void lost(Streams *streams, LaneState state)
{
    Proxy *proxy = streams->proxy;
    pthread_mutex_lock(&streams->lock);
    char *text = NULL;
    bool some_begun = false;
    for (Flight *flight = streams->flights; flight; flight = flight->next)
        some_begun |= flight->begun;
    if (state == LANE_FAULT)
        text = texted("model %s: %s", proxy->model->name, streams->lane->fault);
    else if (streams->ending)
        text = texted("model %s: it is unloaded", proxy->model->name);
    else if (some_begun)
        text = judge_final_loss(proxy);
    if (text == NULL && some_begun)
        text = texted("model %s: its worker is lost", proxy->model->name);
    Flight *all = streams->flights;
    for (Flight *flight = all; flight; flight = flight->next) {
        flight->failure = judge(streams, flight, state == LANE_UNREAD, text, some_begun);
        flight->begun |= flight->failure != NULL; /* as far as execute is concerned */
        flight->under_way = false;
    }
    drop_lane(proxy);
    streams->flights = NULL;
    streams->under_way = streams->room = 0;
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    while (all) {
        Flight *flight = all;
        all = flight->next;
        if (flight->failure)
            end_flight(flight, ERROR_UNAVAILABLE, flight->failure);
        let_go(flight);
    }
    free(text);
}

static void *read_lane(void *argument)
{
    Streams *streams = argument;
    bool unread = false;
    LaneState state;
    for (;;) {
        Reader message;
        state = lane_receive(streams->lane, &message);
        if (state == LANE_UNREAD && !unread) { /* said once, and before what it has sent (unix_stream_recvmsg) */
            unread = true;
            continue;
        }
        if (state == LANE_SILENT)
            state = look_around(streams);
        else if (state == LANE_OK)
            state = heard(streams, &message);
        if (state != LANE_OK)
            break;
    }
    lost(streams, state == LANE_CLOSED && unread ? LANE_UNREAD : state);
    return NULL;
}

/* ── the thread of execute ──────────────────────────────────────────────────────────────────────── */

/* With the lock held. */
static char *start_reader(Streams *streams)
{
    sigset_t all, before;
    streams->lane = streams->proxy->lane;
    streams->room = streams->uncredited = 0;
    streams->ticking = false;
    lane_set_patience(streams->lane, 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are tritonserver's business */
    streams->reading = pthread_create(&streams->reader, NULL, read_lane, streams) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (streams->reading)
        return NULL;
    drop_lane(streams->proxy);
    return texted("model %s: no thread can be started", streams->proxy->model->name);
}

/* With the lock held. */
static char *get_lane(Streams *streams)
{
    if (streams->proxy->lane)
        return NULL;
    if (streams->reading) /* it does not need the lock any more: it has let the lane go */
        pthread_join(streams->reader, NULL);
    streams->reading = false;
    char *failure = attach(streams->proxy);
    return failure ? failure : start_reader(streams);
}

char *streams_attach(Streams *streams)
{
    if (streams == NULL)
        return texted("out of memory");
    pthread_mutex_lock(&streams->lock);
    char *failure = get_lane(streams);
    pthread_mutex_unlock(&streams->lock);
    return failure;
}

/* Put a batch on the lane. With the lock held; `text`: why that cannot be done. */
static LaneState send_batch(
    Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, char **text)
{
    Proxy *proxy = streams->proxy;
    bool circular = false;
    *text = put_batch(proxy, requests, flight->count, &circular);
    if (*text == NULL && circular) {
        proxy->avoid.size = proxy->avoided = 0; /* the lane stays: other batches are under way on it */
        *text = texted("model %s: a call came back to the worker that waits for it; register the model with lanes=1 "
            "and more instances, or break the circle of calls", proxy->model->name);
    }
    if (*text)
        return LANE_FAULT;
    flight->id = (int64_t)proxy->batch;
    LaneState state = lane_send(proxy->lane, &proxy->message);
    if (state == LANE_OK)
        add(streams, flight); /* the reader needs the lock to find it */
    else if (state == LANE_FAULT)
        *text = texted("model %s: %s", proxy->model->name, proxy->lane->fault);
    return state;
}

/* Send a batch when there is room and wait until it has begun. False: the lane was lost before. `text`: why nobody
 * begins it. */
static bool begun(Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, char **text)
{
    Proxy *proxy = streams->proxy;
    pthread_mutex_lock(&streams->lock);
    *text = get_lane(streams);
    while (*text == NULL && proxy->lane && streams->under_way >= streams->room)
        pthread_cond_wait(&streams->changed, &streams->lock);
    if (*text == NULL && proxy->lane) {
        LaneState state = send_batch(streams, flight, requests, text);
        if (state == LANE_OK)
            while (flight->under_way && !(streams->until_returned ? flight->returned : flight->begun))
                pthread_cond_wait(&streams->changed, &streams->lock);
        else if (*text == NULL) /* the reader sees its end, too, and lets it go */
            while (proxy->lane)
                pthread_cond_wait(&streams->changed, &streams->lock);
    }
    bool is_begun = flight->begun;
    pthread_mutex_unlock(&streams->lock);
    return is_begun || *text;
}

/* Give the requests back to tritonserver. */
static void release(
    Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, uint32_t count, uint64_t begun_ns)
{
    Proxy *proxy = streams->proxy;
    uint64_t now_ns = steady_ns(), rows = 0;
    for (uint32_t i = 0; i < count; i++)
        rows += rows_of(proxy->model, requests[i]);
    failed(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        proxy->instance, rows, begun_ns, begun_ns, now_ns, now_ns));
    for (uint32_t i = 0; i < count; i++) {
        bool right = flight && !__atomic_load_n(&flight->streams[i].failed, __ATOMIC_RELAXED);
        bool again = flight && flight->streams[i].reschedule;
        failed(TRITONBACKEND_ModelInstanceReportStatistics(
            proxy->instance, requests[i], right, begun_ns, begun_ns, now_ns, now_ns));
        failed(TRITONBACKEND_RequestRelease(requests[i], again ? RELEASE_RESCHEDULE : RELEASE_ALL));
    }
}

void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count)
{
    uint64_t begun_ns = steady_ns();
    char *text = NULL;
    Flight *flight = new_flight(requests, count);
    if (flight == NULL) {
        for (uint32_t i = 0; i < count; i++)
            send_error(&(Receiver){.request = requests[i]}, ERROR_UNAVAILABLE, "out of memory");
        release(streams, NULL, requests, count, begun_ns);
        return;
    }
    while (!begun(streams, flight, requests, &text))
        ;
    if (text)
        end_flight(flight, ERROR_UNAVAILABLE, text);
    release(streams, flight, requests, count, begun_ns);
    let_go(flight);
    free(text);
}

void streams_free(Streams *streams)
{
    if (streams == NULL)
        return;
    pthread_mutex_lock(&streams->lock);
    streams->ending = true;
    if (streams->proxy->lane)
        lane_hang_up(streams->proxy->lane);
    pthread_mutex_unlock(&streams->lock);
    if (streams->reading)
        pthread_join(streams->reader, NULL);
    metrics_free(&streams->metrics);
    pthread_cond_destroy(&streams->changed);
    pthread_mutex_destroy(&streams->lock);
    free(streams);
}
