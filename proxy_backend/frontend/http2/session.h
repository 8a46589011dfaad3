/* The state of an HTTP/2 connection, for the files of this directory. */
#ifndef PYTRITON_FRONTEND_HTTP2_SESSION_H
#define PYTRITON_FRONTEND_HTTP2_SESSION_H

#include "http2/http2.h"

/* What a waiting message costs in addition to its bytes. */
enum { WAITING_BYTES = 512 };

enum { CUT_OFF = 64 };

/* The state of an HTTP/2 connection. */
typedef struct {
    pthread_mutex_t lock; /* guards the fields below, and the streams */
    nghttp2_session *session; /* NULL when the connection is over */
    GrpcStream *streams, *spare;
    size_t stream_count, spare_count;
    size_t receiving; /* number of streams with an incomplete message */
    /* bytes of all messages that nghttp2 has not taken, and the counted part of it (net/limits.h) */
    size_t unsent, unsent_counted;
    size_t ungranted; /* bytes of requests for which the window is withheld, while the client leaves too much unread */
    unsigned continuations;
    int32_t newest; /* largest id of a stream that the client has begun */
    int32_t cut_off[CUT_OFF]; /* the latest streams that ended before the client did; more data may arrive for them */
    unsigned cut_off_count;
    unsigned turn_messages; /* messages read in this turn; only the loop's thread uses it */
    uint64_t resets, resets_since_ms;
    bool draining, sends_goaway, blocked;
    bool retiring; /* another process replaces this one, and the client has been notified */
    bool greeted; /* the client's first frame has arrived */
    bool in_goaway_grace; /* the deadline is the end of the grace period after GOAWAY */
    bool is_checking; /* the deadline is the next check of the streams */
    GrpcDeferred *deferred_first,
        *deferred_last; /* streams with long messages, in the order of their turns; see deferred_parse.c */
    Timer due; /* at the earliest grpc-timeout; only the loop's thread uses it */
} Session;

static inline Session *session_of(const GrpcStream *stream)
{
    return connection_state(stream->connection);
}

/* ── streams.c; with the lock held ────────────────────────────────────────────────────────────────── */

typedef enum { EVENT_BEGIN, EVENT_MESSAGE, EVENT_HALF_CLOSED, EVENT_CANCELLED, EVENT_REFUSED } EventKind;

/* An event that occurred while the session was locked. It is delivered to the service afterwards. */
typedef struct {
    EventKind kind;
    GrpcStream *stream; /* a reference */
    Buffer message;
    uint64_t received; /* counted bytes of its message (net/limits.h) */
    bool compressed;
} Event;

/* Deliver an event to the service when the lock is released. EVENT_MESSAGE takes the stream's message, which is
 * complete. Returns false without memory.
 */
bool session_emit(EventKind kind, GrpcStream *stream);
/* Release the lock, free sent messages, and deliver the events that have occurred. */
void session_unlock(Session *session, Outgoing *done);
/* Returns NULL without memory. */
GrpcStream *grpc_stream_new(Connection *connection, int32_t id);
/* Free a stream whose last reference was dropped. The caller has to drop the stream's reference to the connection. */
void grpc_stream_free(GrpcStream *stream);
/* Mark a stream as over. The caller takes over the session's reference. */
void grpc_stream_close(GrpcStream *stream);
/* Return the flow-control window for what the client has sent, unless the stream is paused. Sent messages are added to
 * `*done`.
 */
void grpc_stream_resume(GrpcStream *stream, Outgoing **done);
/* Free an event without delivering it. The caller does not hold the lock. */
void event_drop(Event *event);
/* Deliver an event to the service, and free it. `deferred` is true in a reader thread. The caller does not hold the
 * lock.
 */
void event_handle(Event *event, bool deferred);

/* ── deferred_parse.c; without the lock ─────────────────────────────────────────────────────────────────────── */

/* Move an event to a reader thread if it takes long, or comes after one that does. Returns whether it was moved. */
bool event_defer(Event *event);

/* ── streams.c; with the lock held ────────────────────────────────────────────────────────────────── */

/* Record whether a stream has an incomplete message. */
void session_set_receiving(Session *session, GrpcStream *stream, bool receiving);

/* ── send.c; with the lock held ─────────────────────────────────────────────────────────────── */

/* Returns whether a client leaves so much unread that it may not send more until it has read some of it. */
bool session_is_behind(Connection *connection);
/* Update the counted size of the session's messages (net/limits.h). */
void session_count_unsent(Session *session);
/* Set the callbacks with which nghttp2 sends. */
void session_set_senders(nghttp2_session_callbacks *callbacks);
/* Send as much as the socket accepts. Sent messages are added to `*done`. */
void session_push(Connection *connection, Outgoing **done);
/* Drop the unsent messages of a stream. */
void grpc_stream_drop(GrpcStream *stream, Outgoing **done);
/* Call `sent` for all messages of a list. The caller does not hold the lock. */
void outgoing_done(Outgoing *done);

/* ── stall_timeout.c; with the lock held, in the loop's thread ────────────────────────────────────────────── */

/* Set the deadline for what the connection is currently waiting for. */
void session_set_deadline(Connection *connection);
/* Handle a deadline that has passed: end what has taken too long. */
void session_timed_out(Connection *connection);
/* Set the timer for the grpc-timeout of a call whose headers are complete. */
void session_schedule_timeout(GrpcStream *stream);
/* Called by the session's timer `due` when calls may have reached their grpc-timeout. The caller does not hold the
 * lock.
 */
void session_timeout_expired(Timer *timer);

/* ── reset_rate_limit.c; with the lock held, in the loop's thread ─────────────────────────────────────────────── */

/* Count a call that the client has cancelled. */
void session_count_reset(Connection *connection);
/* Returns whether another call may begin. Otherwise, sets the stream's problem. */
bool session_has_resets_left(GrpcStream *stream);

/* ── headers.c ──────────────────────────────────────────────────────────────────────────────── */

/* Store a header. An invalid one is recorded as the stream's problem. Returns false if there are too many, or without
 * memory.
 */
bool grpc_stream_header(GrpcStream *stream, Slice name, Slice value, const Limits *limits);
/* Returns whether the headers are those of a gRPC call. Otherwise, sets the stream's problem. */
bool grpc_stream_check(GrpcStream *stream);
/* Append a text percent-encoded, as grpc-message requires. */
void grpc_put_message(Buffer *to, Slice text);

#endif
