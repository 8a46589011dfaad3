/* A worker that retires answers the streams that it has begun, and accepts no more. The reader of its lane continues
 * them for a proxy that neither tritonserver nor the dispatcher knows, which ends with the last stream. The original
 * proxy gets another lane.
 */
#define _GNU_SOURCE
#include "streams/lane_retirement.h"

#include "proxy/attachment.h"
#include "proxy/teardown.h"

#include <stdlib.h>
#include <string.h>

/* Create a proxy for the remaining streams of a lane. NULL without memory or a descriptor. */
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

/* Returns whether tritonserver's thread waits for a batch on this lane. */
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
    to->calls = from->calls; /* its streams may make calls until they end */
    from->lane = NULL;
    from->calls = NULL;
    from->has_dispatcher_timeout = false;
}

/* With the lock of `from` held. Metrics stay with `from`: they are deleted with their last holder. */
static void move_flights(Streams *from, Streams *to)
{
    Wakeup *wakeup = to->wakeup;
    to->wakeup = from->wakeup; /* a caller that reads from a paused stream signals it */
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
        if (proxy) { /* otherwise batches wait until this lane ends */
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
    return left; /* `streams` may have been freed if it is a different one */
}
