/* Time limits for clients. Every wait for a client ends, whatever else the client sends.
 *
 * While there are calls, all streams are checked at a fixed interval. A stream ends if the client has to make progress
 * on it, but has done less than LIMITS_PROGRESS bytes since a check that was at least the time limit ago. Other streams
 * go on, because a proxy has the calls of many clients on one connection. The connection ends only if none is left.
 */
#include "http2/session.h"

#include <stddef.h>

enum { SECOND_MS = 1000 };

void session_count_reset(Connection *connection)
{
    Session *session = connection_state(connection);
    uint64_t now_ms = loop_now_ms(connection_loop(connection));
    uint64_t most = connection_endpoint(connection)->limits->resets_per_s;
    if (now_ms - session->resets_since_ms >= SECOND_MS) {
        session->resets_since_ms = now_ms;
        session->resets = 0;
    }
    if (++session->resets <= most)
        return;
    if (session->resets == most + 1)
        refusals_count(REFUSED_RESETS);
    if (session->stream_count == 0)
        nghttp2.session_terminate_session(session->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

bool session_has_resets_left(GrpcStream *stream)
{
    const Session *session = session_of(stream);
    uint64_t now_ms = loop_now_ms(connection_loop(stream->connection));
    if (now_ms - session->resets_since_ms >= SECOND_MS ||
        session->resets <= connection_endpoint(stream->connection)->limits->resets_per_s)
        return true;
    return problem_set(
        &stream->problem, PROBLEM_UNAVAILABLE, "too many calls of this connection were cancelled: retry later");
}

/* How long to serve calls that a client sends before it has received GOAWAY. */
enum { GOAWAY_GRACE_MS = 1000 };
/* How long a connection without calls can keep a replaced process alive. */
enum { RETIRED_IDLE_MS = 60000 };

static uint64_t check_interval_ms(const Limits *limits)
{
    uint64_t least = limits->header_ms < limits->body_ms ? limits->header_ms : limits->body_ms;
    least = least / 2 + 1;
    return unsent_check_interval_ms(limits) < least ? unsent_check_interval_ms(limits) : least;
}

void session_set_deadline(Connection *connection)
{
    Session *session = connection_state(connection);
    const Limits *limits = connection_endpoint(connection)->limits;
    if (session->sends_goaway) {
        if (!session->in_goaway_grace)
            connection_set_deadline(connection, GOAWAY_GRACE_MS);
        session->in_goaway_grace = true;
    } else if (session->stream_count) {
        if (!session->is_checking)
            connection_set_deadline(connection, check_interval_ms(limits));
        session->is_checking = true;
    } else if (session->greeted) {
        bool keeps_process = session->retiring && (limits->idle_ms == 0 || limits->idle_ms > RETIRED_IDLE_MS);
        session->is_checking = false;
        connection_set_deadline(connection, keeps_process ? RETIRED_IDLE_MS : limits->idle_ms);
    } /* Otherwise, the deadline for the first frame stays. */
}

static bool stalls(Progress *progress, bool is_expected, uint64_t limit_ms, uint64_t now_ms)
{
    return progress_stalls(progress, is_expected, LIMITS_PROGRESS, limit_ms, now_ms);
}

static bool is_in_headers(const GrpcStream *stream)
{
    /* A client that was refused while it sent its headers is answered when they are complete. */
    return stream->path.start == NULL;
}

static bool is_cut_off(const GrpcStream *stream)
{
    return !stream->paused && !stream->deferred && !stream->finishing &&
        (is_in_headers(stream) || stream->receiving || stream->needs_message);
}

/* Returns whether data that the client has begun to send on a stream did not arrive in time, as the last check found.
 */
static bool is_slow(const GrpcStream *stream, uint64_t limit_ms, uint64_t now_ms)
{
    return stream->inbound.is_expected && now_ms - stream->inbound.checked_ms >= limit_ms;
}

/* End the `slow` streams that are too slow. */
static void end_slow_streams(Connection *connection, size_t slow, uint64_t now_ms)
{
    Session *session = connection_state(connection);
    uint64_t limit_ms = connection_endpoint(connection)->limits->body_ms;
    bool in_headers = false;
    for (GrpcStream *stream = session->streams; stream; stream = stream->next)
        in_headers |= is_slow(stream, limit_ms, now_ms) && is_in_headers(stream);
    /* Nothing else can be sent between header frames, so incomplete headers block the whole connection. */
    if (in_headers || slow == session->stream_count) {
        refusals_count(REFUSED_BODY_TIME);
        nghttp2.session_terminate_session(session->session, NGHTTP2_NO_ERROR);
        return;
    }
    for (GrpcStream *stream = session->streams; stream; stream = stream->next) {
        if (!is_slow(stream, limit_ms, now_ms))
            continue;
        refusals_count(REFUSED_BODY_TIME);
        problem_set(&stream->problem, PROBLEM_SLOW, "the message arrives too slowly");
        session_set_receiving(session, stream, false);
        session_emit(EVENT_REFUSED, stream);
    }
}

/* Check the progress of all streams. */
static void check_streams(Connection *connection, uint64_t now_ms)
{
    Session *session = connection_state(connection);
    const Limits *limits = connection_endpoint(connection)->limits;
    size_t slow = 0;
    for (GrpcStream *stream = session->streams; stream; stream = stream->next) {
        bool is_expected = is_cut_off(stream) && !session->blocked && session->ungranted == 0;
        slow += stalls(&stream->inbound, is_expected, limits->body_ms, now_ms);
        /* If the socket accepts everything, only the stream's window holds a message back. */
        bool unread = stream->begun && stream->first && !session->blocked;
        if (!stalls(&stream->outbound, unread, unsent_timeout_ms(limits), now_ms))
            continue;
        refusals_count(REFUSED_UNSENT_TIME);
        nghttp2.submit_rst_stream(session->session, 0, stream->id, NGHTTP2_CANCEL);
    }
    if (slow)
        end_slow_streams(connection, slow, now_ms);
}

void session_timed_out(Connection *connection)
{
    Session *session = connection_state(connection);
    if (session->sends_goaway) {
        session->sends_goaway = false;
        nghttp2.submit_goaway(
            session->session, 0, nghttp2.session_get_last_proc_stream_id(session->session), NGHTTP2_NO_ERROR, NULL, 0);
        session->draining = true;
    } else if (session->is_checking) {
        check_streams(connection, loop_now_ms(connection_loop(connection)));
    } else {
        refusals_count(session->greeted ? REFUSED_IDLE_TIME : REFUSED_HEADER_TIME);
        nghttp2.session_terminate_session(session->session, NGHTTP2_NO_ERROR);
    }
    session->is_checking = false;
    session_set_deadline(connection);
}

/* ── grpc-timeout ───────────────────────────────────────────────────────────────────────────────────── */

static uint64_t due_ms(const GrpcStream *stream)
{
    return stream->begun_ms + stream->timeout_ms;
}

void session_schedule_timeout(GrpcStream *stream)
{
    Timer *timer = &session_of(stream)->due;
    if (stream->timeout_ms && (timer->due_ms == 0 || due_ms(stream) < timer->due_ms))
        loop_set_timer(connection_loop(stream->connection), timer, due_ms(stream));
}

void session_timeout_expired(Timer *timer)
{
    Session *session = (Session *)((char *)timer - offsetof(Session, due));
    Loop *loop = connection_loop(connection_of(session));
    uint64_t now_ms = loop_now_ms(loop), next_ms = 0;
    pthread_mutex_lock(&session->lock);
    for (GrpcStream *stream = session->streams; stream; stream = stream->next) {
        if (stream->timeout_ms == 0 || stream->path.start == NULL || stream->problem.kind != PROBLEM_NONE)
            continue;
        if (due_ms(stream) <= now_ms) {
            problem_set(&stream->problem, PROBLEM_SLOW, "Deadline Exceeded");
            session_set_receiving(session, stream, false);
            session_emit(EVENT_REFUSED, stream);
        } else if (next_ms == 0 || due_ms(stream) < next_ms) {
            next_ms = due_ms(stream);
        }
    }
    session_unlock(session, NULL);
    if (next_ms)
        loop_set_timer(loop, timer, next_ms);
}
