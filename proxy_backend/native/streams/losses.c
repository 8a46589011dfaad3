#define _GNU_SOURCE
#include "streams/losses.h"

#include "base/text.h"
#include "proxy/attachment.h"

#include <stdlib.h>
#include <string.h>

/* Returns whether a batch cannot be retried: tritonserver has its requests back, or some of its answers have been
 * sent.
 */
static bool is_final(const Streams *streams, const Flight *flight)
{
    return flight->begun && (!streams->until_returned || flight->returned || flight->answered);
}

/* Returns the facts about a batch for the dispatcher. */
static Loss loss_of(const Streams *streams, const Flight *flight)
{
    return (Loss){.losses = flight->losses,
        .requests = flight->count,
        .in_row = flight->losses ? flight->in_row + 1 : 0,
        .final = is_final(streams, flight)};
}

/* Returns the id of a batch's only request, for free(); NULL if it has several. */
static char *only_name(const Flight *flight)
{
    const Receiver *to = &flight->streams[0].to;
    return flight->count == 1 ? name_of(to->name, &to->sent) : NULL;
}

void flight_judge(Streams *streams, Flight *flight, uint64_t now_ns)
{
    double wait_s = 0;
    bool retry = false;
    Loss loss = loss_of(streams, flight);
    loss.taken_ns = flight->taken_ns;
    loss.request_id = only_name(flight);
    char *text = judge_overdue(streams->proxy, &loss, true, &wait_s, &retry);
    free(loss.request_id);
    flight->taken_ns = loss.taken_ns;
    /* Do not wait: the worker is about to be ended, and the lane with it. */
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

/* Returns the answer to a batch whose lane is lost; NULL: it goes to another worker. With the lock held. */
static char *judge(Streams *streams, Flight *flight, bool unread, const char *text, bool others)
{
    if (is_final(streams, flight))
        return texted("%s", text);
    if (unread && !flight->begun)
        return NULL;
    if (text && !others)
        return texted("%s", text);
    bool first = flight->losses++ == 0;
    Loss loss = loss_of(streams, flight);
    loss.in_row = first ? 0 : loss.in_row;
    loss.request_id = only_name(flight);
    char *failure = judge_loss(streams->proxy, &loss);
    free(loss.request_id);
    flight->whole = failure && loss.whole;
    return failure;
}

/* Reset the batch, as if it had never been sent. */
static void reset_flight(Flight *flight)
{
    flight->begun = false;
    flight->overdue_ns = 0;
    flight->held = 0;
    for (uint32_t i = 0; i < flight->count; i++)
        flight->streams[i].cancelled = flight->streams[i].held = false;
}

/* After its broadcast, the lock must not be taken again: a thread that joins this one may hold it. */
bool streams_lost(Streams *streams, LaneState state)
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
    else if (some_begun) {
        final.request_id = streams->flights->next ? NULL : only_name(streams->flights);
        text = judge_loss(proxy, &final);
        free(final.request_id);
    }
    if (text == NULL && some_begun)
        text = texted("model %s: its worker is lost", proxy->model->name);
    Flight *all = streams->flights;
    for (Flight *flight = all; flight; flight = flight->next) {
        if (flight->failure == NULL)
            flight->failure = judge(streams, flight, state == LANE_UNREAD, text, some_begun);
        if (flight->failure)
            flight->begun = true; /* as far as execute is concerned */
        else
            reset_flight(flight);
        flight->under_way = false;
    }
    drop_lane(proxy);
    free(streams->fault);
    streams->fault = state == LANE_FAULT && text ? strdup(text) : NULL;
    streams->flights = NULL;
    streams->under_way = streams->room = 0;
    bool alone = streams->alone; /* it can only become true while batches are in flight */
    pthread_cond_broadcast(&streams->changed);
    pthread_mutex_unlock(&streams->lock);
    while (all) {
        Flight *flight = all;
        all = flight->next;
        sending(&streams->sender);
        if (flight->failure)
            flight_end(proxy, flight, ERROR_UNAVAILABLE, flight->failure, true);
        flight_let_go(flight);
        sent(&streams->sender);
    }
    watch_end(&streams->sender);
    free(text);
    return alone;
}
