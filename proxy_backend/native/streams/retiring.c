/* A worker that retires answers the streams that it has begun, and accepts no more. The reader of its lane continues
 * them for a proxy that neither tritonserver nor the dispatcher knows, which ends with the last stream. The original
 * proxy gets another lane.
 */
#define _GNU_SOURCE
#include "streams/retiring.h"

#include "proxy/attachment.h"
#include "proxy/life.h"

#include <stdlib.h>
#include <string.h>

/* Create a proxy for the remaining streams of a lane. NULL without memory or a descriptor. */
static Proxy *new_proxy(const Proxy *known)
{
    Proxy *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL)
        return NULL;
    proxy->model = known->model;
    __atomic_add_fetch(&proxy->model->holders, 1, __ATOMIC_RELAXED);
    proxy->control = control_new(proxy->model->endpoint);
    proxy->worker = strdup(known->worker);
    proxy->execution_timeout_s = known->execution_timeout_s;
    proxy->tracing = known->tracing;
    proxy->streams = streams_new(proxy);
    if (proxy->control && proxy->worker && proxy->streams)
        return proxy;
    if (proxy->streams)
        streams_free(proxy->streams);
    free_proxy(proxy);
    return NULL;
}

/* Returns whether tritonserver's thread waits for a batch on this lane. */
static bool is_awaited(const Streams *streams)
{
    for (Flight *flight = streams->flights; flight; flight = flight->next)
        if (streams->until_returned ? !flight->returned : !flight->begun)
            return true;
    return false;
}

static void move_lane(Proxy *from, Proxy *to)
{
    to->lane = from->lane;
    to->calls = from->calls; /* its streams may make calls until they end */
    from->lane = NULL;
    from->calls = NULL;
    from->waited_on = false;
}

/* With the lock of `from` held. Metrics stay with `from`: they are deleted with their last holder. */
static void move_flights(Streams *from, Streams *to)
{
    Bell *bell = to->bell;
    to->bell = from->bell; /* a caller that reads from a held stream rings it */
    from->bell = bell;
    to->lane = from->lane;
    to->flights = from->flights;
    to->under_way = from->under_way;
    to->uncredited = from->uncredited;
    to->looked_ns = from->looked_ns;
    to->ticking = from->ticking;
    to->held = from->held;
    from->lane = NULL;
    from->flights = NULL;
    from->under_way = 0;
}

Streams *streams_part(Streams *streams)
{
    Streams *left = streams;
    pthread_mutex_lock(&streams->lock);
    if (streams->flights == NULL)
        lane_hang_up(streams->lane);
    else if (!streams->ending && !streams->alone && !is_awaited(streams)) {
        Proxy *proxy = new_proxy(streams->proxy);
        if (proxy) { /* otherwise batches wait until this lane ends */
            left = proxy->streams;
            left->alone = true;
            move_lane(streams->proxy, proxy);
            move_flights(streams, left);
            watch_end(&streams->sender);
            watch_begin(&left->sender, proxy->model->name);
            streams->reading = false;
            pthread_detach(pthread_self());
            pthread_cond_broadcast(&streams->changed);
        }
    }
    pthread_mutex_unlock(&streams->lock);
    return left; /* `streams` may have been freed if it is a different one */
}
