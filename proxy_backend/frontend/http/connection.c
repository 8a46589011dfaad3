/* The life of an HTTP connection. Its call is owned by the loop while a request is read, and then by the thread that
 * answers.
 */
#include "http/connection.h"

#include "common/clock.h"
#include "handover/handover.h"

#include <stdlib.h>

enum {
    IDLE_CLOSE_MS = 500, /* how long an idle client can still send a request after the server has begun to end */
    HANDOVER_RETRY_MS = 100,
    MAX_FIRST_BYTES = 64 << 10, /* maximum size of a first event that is sent together with the head */
    RETIRED_IDLE_MS = 60000, /* how long an idle connection that cannot be handed over keeps a retiring process alive */
};

static HttpConnection *state_of(Connection *connection)
{
    return connection_state(connection);
}

static void free_loop(void *kept)
{
    HttpLoop *loop = kept;
    calls_free(loop->calls);
    free(loop);
}

HttpLoop *http_loop(Connection *connection, Problem *problem)
{
    Loop *loop = connection_loop(connection);
    HttpLoop *kept = loop_slot(loop, LOOP_HTTP);
    if (kept)
        return kept;
    const HttpService *service = connection_endpoint(connection)->service;
    kept = calloc(1, sizeof *kept);
    if (kept)
        kept->calls = calls_new(&service->settings.calls, sizeof(HttpCall), problem);
    if (kept == NULL || kept->calls == NULL) {
        free(kept);
        problem_no_memory(problem);
        return NULL;
    }
    loop_set_slot(loop, LOOP_HTTP, kept, free_loop);
    return kept;
}

/* ── while a request is answered ──────────────────────────────────────────────────────────────────── */

bool http_connection_is_last(Call *call)
{
    HttpCall *state = http_call(call);
    HttpConnection *http = state_of(state->connection);
    pthread_mutex_lock(&http->lock);
    state->keep_alive &= !http->draining;
    http->sent_so_far = SENT_RESPONSE;
    pthread_mutex_unlock(&http->lock);
    return !state->keep_alive;
}

bool http_connection_begin_events(Call *call, const struct iovec *parts, int count)
{
    Connection *connection = http_call(call)->connection;
    HttpConnection *http = state_of(connection);
    size_t total = 0;
    for (int i = 0; i < count; i++)
        total += parts[i].iov_len;
    int first = total <= MAX_FIRST_BYTES ? count : 1;
    /* In one step: the client may shut down sending as soon as it has the first event, and is then probed (probe_reader). */
    pthread_mutex_lock(&http->lock);
    bool written = connection_write_all(connection, parts, first);
    http->sent_so_far = SENT_EVENTS;
    pthread_mutex_unlock(&http->lock);
    /* A large event may take long to write, for which the loop's thread must not wait. */
    return written && (first == count || connection_write_all(connection, parts + first, count - first));
}

void http_connection_end_events(Call *call)
{
    HttpConnection *http = state_of(http_call(call)->connection);
    pthread_mutex_lock(&http->lock);
    http->sent_so_far = SENT_RESPONSE;
    pthread_mutex_unlock(&http->lock);
}

void http_connection_await_writable(Call *call)
{
    HttpCall *state = http_call(call);
    HttpConnection *http = state_of(state->connection);
    pthread_mutex_lock(&http->lock);
    bool closed = http->closed;
    http->writing = !closed;
    pthread_mutex_unlock(&http->lock);
    if (closed)
        http_connection_responded(call);
    else
        connection_await_writable(state->connection);
}

void http_connection_responded(Call *call)
{
    HttpCall *state = http_call(call);
    Connection *connection = state->connection;
    HttpConnection *http = state_of(connection);
    bool last = !state->keep_alive;
    bool skips_reply = state->relay && relay_may_get_reply(state->relay);
    /* Do this first: the client has its answer, and its next request may arrive at any moment. */
    pthread_mutex_lock(&http->lock);
    http->call = NULL;
    http->busy = false;
    http->sent_so_far = SENT_NOTHING;
    http->skips_reply = skips_reply;
    http->idle_since = clock_ms();
    bool missed = http->missed || http->retiring || http->draining;
    http->missed = false;
    Relay *relay = state->relay;
    state->relay = NULL;
    pthread_mutex_unlock(&http->lock);
    if (relay)
        relay_unref(relay);
    if (last)
        connection_finish(connection);
    else if (missed)
        connection_read_later(connection);
    if (state->response)
        call_response_release(state->response);
    buffer_free(&state->compressed);
    if (state->unsent)
        unsent_release(state->unsent);
    call_unref(call);
    connection_unref(connection);
}

void http_connection_set_relay(Call *call, Relay *relay)
{
    HttpCall *state = http_call(call);
    HttpConnection *http = state_of(state->connection);
    pthread_mutex_lock(&http->lock);
    state->relay = relay;
    pthread_mutex_unlock(&http->lock);
}

/* Returns a reference to the relay of the current answer, or NULL. */
static Relay *relay_of(HttpConnection *http)
{
    pthread_mutex_lock(&http->lock);
    Relay *relay = http->busy && http->call ? http_call(http->call)->relay : NULL;
    if (relay)
        relay_ref(relay);
    pthread_mutex_unlock(&http->lock);
    return relay;
}

/* ── called by the loop ───────────────────────────────────────────────────────────────────────────── */

static void opened(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    pthread_mutex_init(&http->lock, NULL);
    const Limits *limits = connection_endpoint(connection)->limits;
    bool is_adopted = connection_is_adopted(connection);
    http->skips_reply = is_adopted && connection_endpoint(connection)->relays;
    http->idle_since = clock_ms();
    http->deadline_kind = is_adopted ? DEADLINE_NONE : DEADLINE_HEAD;
    connection_set_deadline(connection, is_adopted ? limits->idle_ms : limits->header_ms);
}

static bool is_idle(HttpConnection *http)
{
    pthread_mutex_lock(&http->lock);
    bool idle = !http->busy && http->call == NULL && http->pending.size == 0;
    pthread_mutex_unlock(&http->lock);
    return idle;
}

/* Hand over an idle connection to the process that replaces this one. */
static bool hand_over(Connection *connection, HttpConnection *http)
{
    if (!is_idle(http))
        return false;
    if (handover_give(connection))
        return true;
    if (http->deadline_kind == DEADLINE_NONE && handover_is_possible(connection))
        connection_set_deadline(connection, HANDOVER_RETRY_MS);
    return false;
}

/* Returns whether the loop may read. If not, and `came` says that data has arrived, the loop is notified when it may.
 */
static bool may_read(HttpConnection *http, bool came)
{
    pthread_mutex_lock(&http->lock);
    bool busy = http->busy;
    http->missed |= busy && came;
    pthread_mutex_unlock(&http->lock);
    return !busy;
}

static void readable(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    if (http->retiring && hand_over(connection, http))
        return;
    if (http->closes_when_idle && is_idle(http)) /* A response that was not marked as the last has ended. */
        connection_set_deadline(connection, IDLE_CLOSE_MS);
    bool goes_on = may_read(http, true);
    uint64_t since_ns = clock_ns();
    Relay *relay = goes_on ? NULL : relay_of(http);
    if (relay) {
        relay_readable(relay, connection);
        relay_unref(relay);
    }
    /* After a request that was answered immediately, continue with the next one. */
    while (goes_on && !connection_is_over(connection)) {
        goes_on = request_reader_resume(connection) && may_read(http, false);
        if (goes_on && clock_ns() - since_ns >= HTTP_TURN_NS) {
            connection_read_later(connection);
            return;
        }
    }
}

static void writable(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    pthread_mutex_lock(&http->lock);
    Call *call = http->writing ? http->call : NULL;
    http->writing = false;
    pthread_mutex_unlock(&http->lock);
    if (call)
        response_continue(call);
}

/* The request has not arrived in time: refuse it if it has begun. */
static void refuse_slow(Connection *connection, const HttpConnection *http)
{
    Problem problem = {0};
    bool begun = http->call && http->call->body.size;
    refusals_count(http->deadline_kind == DEADLINE_HEAD ? REFUSED_HEADER_TIME : REFUSED_BODY_TIME);
    if (!begun) {
        connection_finish(connection);
        return;
    }
    problem_set(&problem, PROBLEM_SLOW, "the request's %s did not arrive in time",
        http->deadline_kind == DEADLINE_HEAD ? "head" : "body");
    request_refuse(connection, http, &problem);
}

/* Returns how long the connection may be idle, or 0 for no limit. */
static uint64_t idle_limit_ms(Connection *connection, const HttpConnection *http)
{
    uint64_t limit_ms = connection_endpoint(connection)->limits->idle_ms;
    bool keeps_process = http->retiring && !handover_is_possible(connection);
    return keeps_process && (limit_ms == 0 || limit_ms > RETIRED_IDLE_MS) ? RETIRED_IDLE_MS : limit_ms;
}

static void timed_out(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    pthread_mutex_lock(&http->lock);
    bool busy = http->busy;
    uint64_t idle_ms = clock_ms() - http->idle_since;
    pthread_mutex_unlock(&http->lock);
    if (busy) {
        connection_set_deadline(connection, idle_limit_ms(connection, http));
        return;
    }
    if (http->retiring && hand_over(connection, http))
        return;
    if (http->closes_when_idle && is_idle(http)) {
        connection_finish(connection);
        return;
    }
    if (http->deadline_kind != DEADLINE_NONE) {
        if (http->deadline_kind == DEADLINE_BODY && http->call &&
            http->call->body.size >= http->seen + LIMITS_PROGRESS) {
            http->seen = http->call->body.size;
            connection_set_deadline(connection, connection_endpoint(connection)->limits->body_ms);
            return;
        }
        refuse_slow(connection, http);
        return;
    }
    uint64_t max_ms = idle_limit_ms(connection, http);
    if (idle_ms < max_ms || max_ms == 0) {
        uint64_t left_ms = max_ms ? max_ms - idle_ms : 0;
        bool tries_again = http->retiring && handover_is_possible(connection);
        connection_set_deadline(
            connection, tries_again && (left_ms == 0 || left_ms > HANDOVER_RETRY_MS) ? HANDOVER_RETRY_MS : left_ms);
        return;
    }
    refusals_count(REFUSED_IDLE_TIME);
    connection_finish(connection);
}

/* Cancel the call: its client no longer waits for the answer. */
static void cancel(HttpConnection *http)
{
    Relay *relay = relay_of(http);
    if (relay) {
        relay_gone(relay); /* Notify the relay first: the requester then ends the client's connection. */
        relay_unref(relay);
    }
    pthread_mutex_lock(&http->lock);
    Call *call = http->busy ? call_ref(http->call) : NULL;
    pthread_mutex_unlock(&http->lock);
    if (call) {
        call_cancel(call);
        call_unref(call);
    }
}

/* Send what a client ignores, to find out whether it still exists: 100 (Continue) before an answer (RFC 9110, 15.2),
 * or a comment between events.
 */
static void probe_reader(Connection *connection, HttpConnection *http)
{
    struct iovec go_on = {(char *)(uintptr_t)"HTTP/1.1 100 Continue\r\n\r\n", 25};
    pthread_mutex_lock(&http->lock);
    Call *call = http->busy ? http->call : NULL;
    if (call && http->sent_so_far == SENT_EVENTS)
        response_send_chunk(call, SLICE(": still there?\n\n"));
    else if (call && http->sent_so_far == SENT_NOTHING && !http_call(call)->is_old)
        connection_write_all(connection, &go_on, 1);
    pthread_mutex_unlock(&http->lock);
}

/* The client has shut down sending, or `gone`. A client that has shut down sending may still read, like `nc -N`. Over
 * TCP, a client that has closed its socket looks the same until its kernel answers sent data with a reset, after which
 * it is `gone`. If there is nothing to send, keepalive or the answer detects that.
 */
static void hung_up(Connection *connection, bool gone)
{
    HttpConnection *http = state_of(connection);
    Relay *relay = relay_of(http);
    if (gone || relay) /* The requester of a relayed stream sends as long as it is connected. */
        cancel(http);
    else if (!connection_is_local(connection))
        probe_reader(connection, http);
    if (relay)
        relay_unref(relay);
}

/* Another process replaces this one. The next answer is the connection's last, unless it can be handed over. */
static void retire(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    bool is_possible = handover_is_possible(connection);
    pthread_mutex_lock(&http->lock);
    http->retiring = true;
    http->draining |= !is_possible;
    pthread_mutex_unlock(&http->lock);
    if (!hand_over(connection, http) && !is_possible && http->deadline_kind == DEADLINE_NONE)
        connection_set_deadline(connection, idle_limit_ms(connection, http));
}

static void drain(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    pthread_mutex_lock(&http->lock);
    http->draining = true;
    pthread_mutex_unlock(&http->lock);
    http->closes_when_idle = true;
    if (is_idle(http))
        connection_set_deadline(connection, IDLE_CLOSE_MS);
}

static void closed(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    pthread_mutex_lock(&http->lock);
    http->closed = true;
    Call *unread = http->busy ? NULL : http->call;
    Call *unwritten = http->writing ? http->call : NULL;
    if (unread)
        http->call = NULL;
    http->writing = false;
    pthread_mutex_unlock(&http->lock);
    if (unread)
        call_unref(unread);
    else if (unwritten)
        http_connection_responded(unwritten);
    else
        cancel(http);
}

static void freed(Connection *connection)
{
    HttpConnection *http = state_of(connection);
    pthread_mutex_destroy(&http->lock);
    buffer_free(&http->pending);
    free(http->chunks);
}

static Slice refusal(Refusal reason)
{
    (void)reason;
#define TOO_MANY "{\"error\":\"there are too many connections\"}"
    _Static_assert(sizeof TOO_MANY - 1 == 42, "the length given in its head");
    return SLICE("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 42\r\n"
                 "Connection: close\r\n\r\n" TOO_MANY);
}

const Protocol http_protocol = {
    .name = "http",
    .alpn = "http/1.1",
    .size = sizeof(HttpConnection),
    .refusal = refusal,
    .opened = opened,
    .readable = readable,
    .writable = writable,
    .timed_out = timed_out,
    .hung_up = hung_up,
    .drain = drain,
    .closed = closed,
    .freed = freed,
    .retire = retire,
};
