#define _GNU_SOURCE
#include "streams/worker_lost.h"

#include "base/strings.h"
#include "proxy/proxy.h"

#include <stdlib.h>
#include <string.h>

/* Create a proxy for the streams that remain on a lane. Returns NULL without memory or a descriptor. */
static Proxy *orphan_proxy_new(const Proxy *known)
{
    Proxy *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL)
        return NULL;
    proxy->model = known->model;
    __atomic_add_fetch(&proxy->model->refs, 1, __ATOMIC_RELAXED);
    proxy->control = control_new(proxy->model->endpoint);
    proxy->worker = strdup(known->worker);
    proxy->execution_timeout_s = known->execution_timeout_s;
    proxy->tracing = known->tracing;
    proxy->streams = streams_new(proxy);
    if (proxy->control && proxy->worker && proxy->streams)
        return proxy;
    if (proxy->streams)
        streams_free(proxy->streams);
    proxy_free(proxy);
    return NULL;
}

/* Returns whether a thread of tritonserver is waiting for a batch on this lane. */
static bool is_awaited(const Streams *streams)
{
    for (Flight *flight = streams->flights; flight; flight = flight->next)
        if (streams->waits_for_return ? !flight->returned : !flight->begun)
            return true;
    return false;
}

static void move_lane(Proxy *from, Proxy *to)
{
    to->lane = from->lane;
    to->calls = from->calls; /* The remaining streams may make calls until they end. */
    from->lane = NULL;
    from->calls = NULL;
    from->has_dispatcher_timeout = false;
}

/* Move the batches in flight. Custom metrics stay with `from`, since they are deleted with their last holder. The
 * caller holds the lock of `from`.
 */
static void move_flights(Streams *from, Streams *to)
{
    Wakeup *wakeup = to->wakeup;
    to->wakeup = from->wakeup; /* Callers that read from paused streams signal this descriptor. */
    from->wakeup = wakeup;
    to->lane = from->lane;
    to->flights = from->flights;
    to->inflight_count = from->inflight_count;
    to->uncredited = from->uncredited;
    to->checked_ns = from->checked_ns;
    to->has_check_timeout = from->has_check_timeout;
    to->paused_count = from->paused_count;
    from->lane = NULL;
    from->flights = NULL;
    from->inflight_count = 0;
}

Streams *streams_leave_lane(Streams *streams)
{
    Streams *left = streams;
    pthread_mutex_lock(&streams->lock);
    if (streams->flights == NULL)
        lane_shutdown(streams->lane);
    else if (!streams->is_stopping && !streams->is_orphaned && !is_awaited(streams)) {
        Proxy *proxy = orphan_proxy_new(streams->proxy);
        if (proxy) { /* Without memory for it, batches wait until this lane ends. */
            left = proxy->streams;
            left->is_orphaned = true;
            move_lane(streams->proxy, proxy);
            move_flights(streams, left);
            watchdog_end(&streams->sender);
            watchdog_begin(&left->sender, proxy->model->name);
            streams->has_reader = false;
            pthread_detach(pthread_self());
            pthread_cond_broadcast(&streams->changed);
        }
    }
    pthread_mutex_unlock(&streams->lock);
    return left; /* `streams` may have been freed if the result is a different one. */
}

/* Returns whether a batch cannot be retried, because tritonserver has its requests back or some of its answers were
 * sent.
 */
static bool is_final(const Streams *streams, const Flight *flight)
{
    return flight->begun && (!streams->waits_for_return || flight->returned || flight->answered);
}

/* Returns what the dispatcher needs to know about a batch. */
static LossReport loss_report(const Streams *streams, const Flight *flight)
{
    return (LossReport){.lost_workers = flight->lost_workers,
        .requests = flight->count,
        .consecutive_losses = flight->lost_workers ? flight->consecutive_losses + 1 : 0,
        .is_final = is_final(streams, flight)};
}

/* Returns the id of a batch's only request, for free(), or NULL if it has several. */
static char *only_request_id(const Flight *flight)
{
    const Receiver *to = &flight->streams[0].to;
    return flight->count == 1 ? request_id(to->name, &to->sent) : NULL;
}

void flight_report_overdue(Streams *streams, Flight *flight, uint64_t now_ns)
{
    double wait_s = 0;
    bool retry = false;
    LossReport loss = loss_report(streams, flight);
    loss.read_ns = flight->read_ns;
    loss.request_id = only_request_id(flight);
    char *text = proxy_report_overdue(streams->proxy, &loss, true, &wait_s, &retry);
    free(loss.request_id);
    flight->read_ns = loss.read_ns;
    /* With an error or a retry, the worker and its lane are about to end: do not report again. */
    flight->overdue_ns = text || retry ? 0 : now_ns + (uint64_t)(wait_s * 1e9);
    if (text == NULL || loss.is_final) { /* Wait for the end of the lane, which gives a better reason. */
        free(text);
        return;
    }
    pthread_mutex_lock(&streams->lock);
    free(flight->failure);
    flight->failure = text;
    flight->fails_rest = loss.fails_rest;
    pthread_mutex_unlock(&streams->lock);
}

/* Returns the error for a batch whose lane was lost, or NULL to send it to another worker. The caller holds the lock.
 */
static char *decide_retry(Streams *streams, Flight *flight, bool unread, const char *text, bool others)
{
    if (is_final(streams, flight))
        return strdup_printf("%s", text);
    if (unread && !flight->begun)
        return NULL;
    if (text && !others)
        return strdup_printf("%s", text);
    bool first = flight->lost_workers++ == 0;
    LossReport loss = loss_report(streams, flight);
    loss.consecutive_losses = first ? 0 : loss.consecutive_losses;
    loss.request_id = only_request_id(flight);
    char *failure = proxy_report_loss(streams->proxy, &loss);
    free(loss.request_id);
    flight->fails_rest = failure && loss.fails_rest;
    return failure;
}

/* Reset a batch to the state before it was sent. */
static void reset_flight(Flight *flight)
{
    flight->begun = false;
    flight->overdue_ns = 0;
    flight->paused_count = 0;
    for (uint32_t i = 0; i < flight->count; i++)
        flight->streams[i].cancelled = flight->streams[i].paused = false;
}

/* Does not take the lock after the broadcast at its end: a thread that joins this one may hold it. */
bool streams_handle_lost_lane(Streams *streams, LaneState state)
{
    Proxy *proxy = streams->proxy;
    pthread_mutex_lock(&streams->lock);
    if (state == LANE_CLOSED && streams->lane->was_reset)
        state = LANE_UNREAD;
    char *text = NULL;
    bool some_begun = false;
    LossReport report = {.lost_workers = 1, .requests = 1, .is_final = true};
    for (Flight *flight = streams->flights; flight; flight = flight->next)
        some_begun |= is_final(streams, flight);
    if (state == LANE_FAULT)
        text = strdup_printf("model %s: %s", proxy->model->name, streams->lane->fault);
    else if (streams->is_stopping && !streams->is_orphaned)
        text = strdup_printf("model %s is being unloaded", proxy->model->name);
    else if (some_begun) {
        report.request_id = streams->flights->next ? NULL : only_request_id(streams->flights);
        text = proxy_report_loss(proxy, &report);
        free(report.request_id);
    }
    if (text == NULL && some_begun)
        text = strdup_printf("model %s: its worker is lost", proxy->model->name);
    Flight *all = streams->flights;
    for (Flight *flight = all; flight; flight = flight->next) {
        if (flight->failure == NULL)
            flight->failure = decide_retry(streams, flight, state == LANE_UNREAD, text, some_begun);
        if (flight->failure)
            flight->begun = true; /* Lets the waiting `execute` return. */
        else
            reset_flight(flight);
        flight->is_inflight = false;
    }
    proxy_drop_lane(proxy);
    free(streams->fault);
    streams->fault = state == LANE_FAULT && text ? strdup(text) : NULL;
    streams->flights = NULL;
    streams->inflight_count = streams->room = 0;
    bool is_orphaned = streams->is_orphaned; /* Becomes true only while batches are in flight. */
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    while (all) {
        Flight *flight = all;
        all = flight->next;
        watchdog_send_begins(&streams->sender);
        if (flight->failure)
            flight_end(proxy, flight, ERROR_UNAVAILABLE, flight->failure, true);
        flight_unref(flight);
        watchdog_send_ended(&streams->sender);
    }
    watchdog_end(&streams->sender);
    free(text);
    return is_orphaned;
}
