/* Batches that are answered many times, or at any time, while tritonserver continues:
 *
 *     execute ──▶ streams_begin: Batch ──▶ worker         tritonserver's thread sends a batch and waits until it has begun
 *     reader ◀── BatchBegun, BatchPart…, BatchDone        a thread per lane (reader.c) passes answers on
 *
 * A disconnected client is detected by asking its response factory, several times a second while a batch is in flight.
 *
 * A batch that has been answered in part cannot be retried, so it fails if its worker is lost after it began; one that
 * had not begun goes to the next worker. So does a batch of a Triton Python model that has answered nothing and whose
 * `execute` has not returned: tritonserver waits until then. Requests that lost a worker together are retried
 * individually (batch.c).
 */
#define _GNU_SOURCE
#include "streams/streams.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "lane/idle.h"
#include "proxy/attachment.h"
#include "streams/reader.h"
#include "streams/shared.h"
#include "translation/refusals.h"
#include "translation/requests.h"
#include "triton/errors.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* With the lock held. */
static void add(Streams *streams, Flight *flight)
{
    flight->holders++;
    flight->under_way = true;
    flight->next = streams->flights;
    streams->flights = flight;
    streams->under_way++;
}

/* With the lock held. */
static char *start_reader(Streams *streams)
{
    streams->lane = streams->proxy->lane;
    streams->room = streams->uncredited = 0;
    streams->held = 0;
    streams->ticking = streams->retires = false;
    lane_set_patience(streams->lane, 0);
    streams->reading = start_thread(&streams->reader, 0, read_lane, streams);
    if (streams->reading)
        return NULL;
    drop_lane(streams->proxy);
    return texted("model %s: cannot start a thread", streams->proxy->model->name);
}

/* With the lock held. If no batch waits for a lane, there is none while the model is suspended. */
static char *get_lane(Streams *streams, bool batch)
{
    if (streams->proxy->lane)
        return NULL;
    if (streams->reading) /* it does not take the lock again: it has released the lane */
        pthread_join(streams->reader, NULL);
    streams->reading = false;
    char *failure = attach(streams->proxy, batch);
    return failure || streams->proxy->lane == NULL ? failure : start_reader(streams);
}

char *streams_attach(Streams *streams)
{
    if (streams == NULL)
        return texted("out of memory");
    pthread_mutex_lock(&streams->lock);
    char *failure = get_lane(streams, false);
    pthread_mutex_unlock(&streams->lock);
    return failure;
}

/* Put a batch on the lane. With the lock held. `text`: why that is impossible. */
static LaneState send_batch(Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, char **text)
{
    Proxy *proxy = streams->proxy;
    bool circular = false;
    *text = put_batch(proxy, requests, flight->count, flight->losses > 0, flight->handed_ns, &circular);
    if (*text == NULL && circular) {
        proxy->avoid.size = proxy->avoided = 0; /* keep the lane: other batches are in flight on it */
        *text = texted("model %s: a call came back to the worker that waits for it; register the model with lanes=1 "
                       "and more instances, or break the circle of calls",
            proxy->model->name);
    }
    if (*text)
        return LANE_FAULT;
    flight->id = (int64_t)proxy->batch;
    for (uint32_t i = 0; i < flight->count; i++)
        flight->streams[i].to.sent = (Sent){flight->handed_ns, proxy->batch, i};
    LaneState state = lane_send(proxy->lane, &proxy->message);
    flight->sent_ns = steady_ns();
    if (state == LANE_OK)
        add(streams, flight); /* the reader needs the lock to find it */
    else if (state == LANE_FAULT)
        *text = texted("model %s: %s", proxy->model->name, proxy->lane->fault);
    return state;
}

/* A batch's waiting time. */
typedef struct {
    uint64_t overdue_ns; /* when it has waited too long; 0: never */
    uint64_t taken_ns;   /* see Loss */
} ServerWait;

/* Returns the waiting time of a batch that begins to wait now. */
static ServerWait patience_of(const Streams *streams)
{
    double limit_s = streams->proxy->execution_timeout_s;
    return (ServerWait){limit_s > 0 ? steady_ns() + (uint64_t)(limit_s * 1e9) : 0, 0};
}

/* Wait for a change, with the lock held. Ask the dispatcher once it is overdue that the worker begins a batch. */
static void wait_on(Streams *streams, Flight *flight, ServerWait *patience)
{
    uint64_t now_ns = steady_ns();
    double wait_s = 0;
    bool others = flight->sent_ns == 0 && streams->under_way > 0, retry = false; /* they have their own limits */
    if (patience->overdue_ns == 0 || flight->begun || others) {
        pthread_cond_wait(&streams->changed, &streams->lock);
        return;
    }
    if (now_ns < patience->overdue_ns) {
        struct timespec due = {.tv_sec = (time_t)(patience->overdue_ns / 1000000000),
            .tv_nsec = (long)(patience->overdue_ns % 1000000000)};
        pthread_cond_timedwait(&streams->changed, &streams->lock, &due);
        return;
    }
    bool taken = flight->sent_ns && lane_all_read(streams->proxy->lane);
    Loss loss = {.losses = flight->losses, .requests = flight->count, .final = true, .taken_ns = patience->taken_ns};
    char *text = judge_overdue(streams->proxy, &loss, taken, &wait_s, &retry);
    patience->taken_ns = loss.taken_ns;
    /* Otherwise the worker is about to be ended, and the lane with it. */
    patience->overdue_ns = text || retry ? 0 : now_ns + (uint64_t)(wait_s * 1e9);
    if (flight->under_way)
        flight->failure = text;
    else
        free(text);
}

/* Wait until there is room for a batch. `text`: why there never will be. With the lock held. */
static void await_room(Streams *streams, Flight *flight, char **text)
{
    ServerWait patience = patience_of(streams);
    flight->sent_ns = 0;
    while (*text == NULL && streams->proxy->lane && streams->under_way >= streams->room)
        wait_on(streams, flight, &patience);
    if (*text == NULL && streams->proxy->lane == NULL && streams->fault)
        *text = strdup(streams->fault); /* the next lane would end in the same way, forever */
}

/* Send a batch when there is room, and wait until it has begun. Returns false if the lane was lost before. `text`:
 * why no worker begins it.
 */
static bool begun(Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, char **text)
{
    Proxy *proxy = streams->proxy;
    __atomic_add_fetch(&proxy->model->waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&streams->lock);
    *text = get_lane(streams, true);
    await_room(streams, flight, text);
    if (*text == NULL && proxy->lane) {
        LaneState state = send_batch(streams, flight, requests, text);
        ServerWait patience = patience_of(streams);
        if (state == LANE_OK)
            while (flight->under_way && !(streams->until_returned ? flight->returned : flight->begun))
                wait_on(streams, flight, &patience);
        else if (*text == NULL) { /* the reader sees its end, too, and releases it */
            lane_hang_up(proxy->lane); /* even if the worker has just closed its half */
            while (proxy->lane)
                pthread_cond_wait(&streams->changed, &streams->lock);
        }
    }
    bool is_begun = flight->begun;
    if (is_begun && proxy->lane) /* its inputs have been copied */
        idle_begin(&proxy->lane->arena);
    pthread_mutex_unlock(&streams->lock);
    __atomic_sub_fetch(&proxy->model->waiting, 1, __ATOMIC_RELAXED);
    return is_begun || *text;
}

/* Return the requests to tritonserver. */
static void release(
    Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, uint32_t count, uint64_t begun_ns)
{
    Proxy *proxy = streams->proxy;
    uint64_t sent_ns = flight && flight->sent_ns ? flight->sent_ns : begun_ns;
    uint64_t now_ns = steady_ns(), rows = 0;
    for (uint32_t i = 0; i < count; i++)
        rows += rows_of(proxy->model, requests[i]);
    failed(TRITONBACKEND_ModelInstanceReportBatchStatistics(proxy->instance, rows, begun_ns, sent_ns, now_ns, now_ns));
    for (uint32_t i = 0; i < count; i++) {
        bool right = flight && !stream_has_failed(&flight->streams[i]);
        bool again = flight && flight->streams[i].reschedule;
        failed(TRITONBACKEND_ModelInstanceReportStatistics(
            proxy->instance, requests[i], right, begun_ns, sent_ns, now_ns, now_ns));
        failed(TRITONBACKEND_RequestRelease(requests[i], again ? RELEASE_RESCHEDULE : RELEASE_ALL));
    }
}

/* The progress of a batch whose requests are retried individually. */
typedef struct {
    bool apart;
    int in_row; /* how many in a row lost a worker */
    char *rest; /* the answer to all remaining requests; NULL: they are retried */
} Trials;

static void fail_all(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count, const char *text)
{
    uint64_t begun_ns = steady_ns();
    for (uint32_t i = 0; i < count; i++)
        send_error(streams->proxy, &(Receiver){.request = requests[i]}, ERROR_UNAVAILABLE, text, true);
    release(streams, NULL, requests, count, begun_ns);
}

/* Wait until a worker begins the requests. Returns false if one was lost with several of them: retry each
 * individually.
 */
static bool begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count, Trials *trials)
{
    uint64_t begun_ns = steady_ns();
    char *text = NULL;
    Flight *flight = flight_new(streams->proxy, requests, count);
    if (flight == NULL) {
        fail_all(streams, requests, count, "out of memory");
        return true;
    }
    flight->handed_ns = begun_ns;
    flight->losses = trials->apart;
    flight->in_row = trials->in_row;
    while (!begun(streams, flight, requests, &text))
        if (flight->losses && count > 1) {
            flight_let_go(flight);
            return false;
        }
    if (text)
        flight_end(streams->proxy, flight, ERROR_UNAVAILABLE, text, true);
    release(streams, flight, requests, count, begun_ns);
    trials->in_row = flight->failure ? trials->in_row + 1 : 0;
    if (flight->whole && flight->failure)
        trials->rest = texted("%s", flight->failure);
    flight_let_go(flight);
    free(text);
    return true;
}

void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count)
{
    Trials trials = {0};
    count = refuse_wrong(streams->proxy, requests, count);
    if (count == 0 || begin(streams, requests, count, &trials))
        return;
    trials.apart = true;
    uint32_t next = 0;
    while (next < count && trials.rest == NULL)
        begin(streams, requests + next++, 1, &trials);
    if (next < count)
        fail_all(streams, requests + next, count - next, trials.rest);
    free(trials.rest);
}

bool streams_end(Streams *streams)
{
    pthread_mutex_lock(&streams->lock);
    bool alone = streams->flights != NULL;
    streams->ending = true;
    streams->alone = alone;
    if (alone)
        pthread_detach(streams->reader);
    else if (streams->proxy->lane)
        lane_hang_up(streams->proxy->lane);
    pthread_mutex_unlock(&streams->lock);
    if (alone) /* `streams` may have been freed */
        return false;
    if (streams->reading)
        pthread_join(streams->reader, NULL);
    streams_free(streams);
    return true;
}
