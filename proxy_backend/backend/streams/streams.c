/* Models that may answer a request many times, or at any time, while tritonserver goes on:
 *
 *     execute ──▶ streams_begin: Batch ──▶ worker         tritonserver's thread sends a batch, and waits until it has begun
 *     reader ◀── BatchBegun, BatchPart…, BatchDone        one thread per lane (reader.c) forwards the answers
 *
 * While batches are in flight, their response factories are asked several times a second whether the client has
 * disconnected.
 *
 * A batch that has begun fails if its worker is lost, because answers cannot be taken back. A batch that has not begun
 * goes to another worker. So does a batch of a Triton Python model without answers if `execute` has not returned, since
 * tritonserver waits until then. Requests that lost a worker together are retried one by one, as in batch.c.
 */
#define _GNU_SOURCE
#include "streams/streams.h"

#include "common/clock.h"
#include "base/strings.h"
#include "base/thread.h"
#include "lane/memory.h"
#include "proxy/proxy.h"
#include "streams/reader.h"
#include "streams/state.h"
#include "translation/request_check.h"
#include "translation/requests.h"
#include "triton/errors.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Add a batch to the list. The caller holds the lock. */
static void add(Streams *streams, Flight *flight)
{
    flight->refs++;
    flight->is_inflight = true;
    flight->next = streams->flights;
    streams->flights = flight;
    streams->inflight_count++;
}

/* Start the reader thread. The caller holds the lock. */
static char *start_reader(Streams *streams)
{
    streams->lane = streams->proxy->lane;
    streams->room = streams->uncredited = 0;
    streams->paused_count = 0;
    streams->has_check_timeout = streams->is_retiring = false;
    lane_set_timeout(streams->lane, 0);
    streams->has_reader = thread_start(&streams->reader, 0, lane_reader_run, streams);
    if (streams->has_reader)
        return NULL;
    proxy_drop_lane(streams->proxy);
    return strdup_printf("model %s: cannot start a thread", streams->proxy->model->name);
}

/* Attach the proxy and start its reader thread. Without a waiting batch, a suspended model gets no lane. The caller
 * holds the lock.
 */
static char *get_lane(Streams *streams, bool batch)
{
    if (streams->proxy->lane)
        return NULL;
    if (streams->has_reader) /* The previous reader has released the lane, so it does not take the lock again. */
        pthread_join(streams->reader, NULL);
    streams->has_reader = false;
    char *failure = proxy_attach(streams->proxy, batch);
    return failure || streams->proxy->lane == NULL ? failure : start_reader(streams);
}

char *streams_attach(Streams *streams)
{
    if (streams == NULL)
        return strdup_printf("out of memory");
    pthread_mutex_lock(&streams->lock);
    char *failure = get_lane(streams, false);
    pthread_mutex_unlock(&streams->lock);
    return failure;
}

/* Send a batch to the worker. `text` receives an error if that is impossible. The caller holds the lock. */
static LaneState send_batch(Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, char **text)
{
    Proxy *proxy = streams->proxy;
    bool circular = false;
    *text = batch_encode(proxy, requests, flight->count, flight->lost_workers > 0, flight->received_ns, &circular);
    if (*text == NULL && circular) {
        proxy->avoid.size = proxy->avoid_count = 0; /* Keep the lane, because other batches are in flight on it. */
        *text = strdup_printf("model %s: a call came back to the worker that waits for it; register the model with "
                              "max_inflight_batches=1 and more instances, or remove the circular call",
            proxy->model->name);
    }
    if (*text)
        return LANE_FAULT;
    flight->id = (int64_t)proxy->batch;
    for (uint32_t i = 0; i < flight->count; i++)
        flight->streams[i].to.sent = (RequestPosition){flight->received_ns, proxy->batch, i};
    LaneState state = lane_send(proxy->lane, &proxy->message);
    flight->sent_ns = clock_ns();
    if (state == LANE_OK)
        add(streams, flight); /* The reader thread cannot look for the batch before this thread releases the lock. */
    else if (state == LANE_FAULT)
        *text = strdup_printf("model %s: %s", proxy->model->name, proxy->lane->fault);
    return state;
}

/* The time for which a batch waits to be begun. */
typedef struct {
    uint64_t overdue_ns; /* when it has waited too long; 0 means never */
    uint64_t read_ns;   /* as in LossReport */
} BeginWait;

/* Returns the state of a batch that begins to wait now. */
static BeginWait begin_wait(const Streams *streams)
{
    double limit_s = streams->proxy->execution_timeout_s;
    return (BeginWait){limit_s > 0 ? clock_ns() + (uint64_t)(limit_s * 1e9) : 0, 0};
}

/* Wait for a change to the streams. If the batch should have been begun long ago, ask the dispatcher for a verdict,
 * once. The caller holds the lock.
 */
static void wait_for_change(Streams *streams, Flight *flight, BeginWait *wait)
{
    uint64_t now_ns = clock_ns();
    double wait_s = 0;
    /* The batches in flight have their own limits. */
    bool others = flight->sent_ns == 0 && streams->inflight_count > 0, retry = false;
    if (wait->overdue_ns == 0 || flight->begun || others) {
        pthread_cond_wait(&streams->changed, &streams->lock);
        return;
    }
    if (now_ns < wait->overdue_ns) {
        struct timespec due = {
            .tv_sec = (time_t)(wait->overdue_ns / 1000000000), .tv_nsec = (long)(wait->overdue_ns % 1000000000)};
        pthread_cond_timedwait(&streams->changed, &streams->lock, &due);
        return;
    }
    bool was_read = flight->sent_ns && lane_all_read(streams->proxy->lane);
    LossReport loss = {
        .lost_workers = flight->lost_workers, .requests = flight->count, .is_final = true, .read_ns = wait->read_ns};
    char *text = proxy_report_overdue(streams->proxy, &loss, was_read, &wait_s, &retry);
    wait->read_ns = loss.read_ns;
    /* With an error or a retry, the worker and its lane are about to end: do not report again. */
    wait->overdue_ns = text || retry ? 0 : now_ns + (uint64_t)(wait_s * 1e9);
    if (flight->is_inflight)
        flight->failure = text;
    else
        free(text);
}

/* Wait until the lane has room for a batch. `text` receives the error if it never will. The caller holds the lock. */
static void wait_for_room(Streams *streams, Flight *flight, char **text)
{
    BeginWait wait = begin_wait(streams);
    flight->sent_ns = 0;
    while (*text == NULL && streams->proxy->lane && streams->inflight_count >= streams->room)
        wait_for_change(streams, flight, &wait);
    if (*text == NULL && streams->proxy->lane == NULL && streams->fault)
        *text = strdup(streams->fault); /* The next lane would end in the same way. */
}

/* Send a batch when the lane has room for it, and wait until a worker has begun it. Returns false if the lane was lost
 * before. `text` receives the error if no worker will begin it.
 */
static bool send_and_wait(Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, char **text)
{
    Proxy *proxy = streams->proxy;
    __atomic_add_fetch(&proxy->model->waiting, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&streams->lock);
    *text = get_lane(streams, true);
    wait_for_room(streams, flight, text);
    if (*text == NULL && proxy->lane) {
        LaneState state = send_batch(streams, flight, requests, text);
        BeginWait wait = begin_wait(streams);
        if (state == LANE_OK)
            while (flight->is_inflight && !(streams->waits_for_return ? flight->returned : flight->begun))
                wait_for_change(streams, flight, &wait);
        else if (*text == NULL) { /* The reader thread notices the end of the lane, too, and releases it. */
            lane_shutdown(proxy->lane); /* Needed even if the worker has closed its end. */
            while (proxy->lane)
                pthread_cond_wait(&streams->changed, &streams->lock);
        }
    }
    bool is_begun = flight->begun;
    if (is_begun && proxy->lane) /* The inputs have been copied. */
        arena_trim_schedule(&proxy->lane->arena);
    pthread_mutex_unlock(&streams->lock);
    __atomic_sub_fetch(&proxy->model->waiting, 1, __ATOMIC_RELAXED);
    return is_begun || *text;
}

/* Return the requests to tritonserver, and report their statistics. */
static void release_requests(
    Streams *streams, Flight *flight, TRITONBACKEND_Request **requests, uint32_t count, uint64_t begun_ns)
{
    Proxy *proxy = streams->proxy;
    uint64_t sent_ns = flight && flight->sent_ns ? flight->sent_ns : begun_ns;
    uint64_t now_ns = clock_ns(), rows = 0;
    for (uint32_t i = 0; i < count; i++)
        rows += request_rows(proxy->model, requests[i]);
    triton_error_consume(
        TRITONBACKEND_ModelInstanceReportBatchStatistics(proxy->instance, rows, begun_ns, sent_ns, now_ns, now_ns));
    for (uint32_t i = 0; i < count; i++) {
        bool right = flight && !stream_has_failed(&flight->streams[i]);
        bool again = flight && flight->streams[i].reschedule;
        triton_error_consume(TRITONBACKEND_ModelInstanceReportStatistics(
            proxy->instance, requests[i], right, begun_ns, sent_ns, now_ns, now_ns));
        triton_error_consume(TRITONBACKEND_RequestRelease(requests[i], again ? RELEASE_RESCHEDULE : RELEASE_ALL));
    }
}

/* The state of a batch whose requests are retried individually. */
typedef struct {
    bool is_isolated;
    int consecutive_losses; /* number of requests in a row that lost a worker */
    char *rest_failure; /* the error for all remaining requests; NULL while they are retried */
} RetryState;

static void fail_all(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count, const char *text)
{
    uint64_t begun_ns = clock_ns();
    for (uint32_t i = 0; i < count; i++)
        response_send_error(streams->proxy, &(Receiver){.request = requests[i]}, ERROR_UNAVAILABLE, text, true);
    release_requests(streams, NULL, requests, count, begun_ns);
}

/* Wait until a worker has begun the requests. Returns false if a worker was lost with several of them: then retry them
 * individually.
 */
static bool run_flight(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count, RetryState *retry)
{
    uint64_t begun_ns = clock_ns();
    char *text = NULL;
    Flight *flight = flight_new(streams->proxy, requests, count);
    if (flight == NULL) {
        fail_all(streams, requests, count, "out of memory");
        return true;
    }
    flight->received_ns = begun_ns;
    flight->lost_workers = retry->is_isolated;
    flight->consecutive_losses = retry->consecutive_losses;
    while (!send_and_wait(streams, flight, requests, &text))
        if (flight->lost_workers && count > 1) {
            flight_unref(flight);
            return false;
        }
    if (text)
        flight_end(streams->proxy, flight, ERROR_UNAVAILABLE, text, true);
    release_requests(streams, flight, requests, count, begun_ns);
    retry->consecutive_losses = flight->failure ? retry->consecutive_losses + 1 : 0;
    if (flight->fails_rest && flight->failure)
        retry->rest_failure = strdup_printf("%s", flight->failure);
    flight_unref(flight);
    free(text);
    return true;
}

void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count)
{
    RetryState retry = {0};
    count = requests_reject_invalid(streams->proxy, requests, count);
    if (count == 0 || run_flight(streams, requests, count, &retry))
        return;
    retry.is_isolated = true;
    uint32_t next = 0;
    while (next < count && retry.rest_failure == NULL)
        run_flight(streams, requests + next++, 1, &retry);
    if (next < count)
        fail_all(streams, requests + next, count - next, retry.rest_failure);
    free(retry.rest_failure);
}

bool streams_end(Streams *streams)
{
    pthread_mutex_lock(&streams->lock);
    bool is_orphaned = streams->flights != NULL;
    streams->is_stopping = true;
    streams->is_orphaned = is_orphaned;
    if (is_orphaned)
        pthread_detach(streams->reader);
    else if (streams->proxy->lane)
        lane_shutdown(streams->proxy->lane);
    pthread_mutex_unlock(&streams->lock);
    if (is_orphaned) /* `streams` may have been freed. */
        return false;
    if (streams->has_reader)
        pthread_join(streams->reader, NULL);
    streams_free(streams);
    return true;
}
