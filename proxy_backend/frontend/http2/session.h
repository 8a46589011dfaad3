/* Shared by http2.c (receiving) and send.c (sending). */
#ifndef PYTRITON_FRONTEND_HTTP2_SESSION_H
#define PYTRITON_FRONTEND_HTTP2_SESSION_H

#include "http2/http2.h"

/* The cost of a waiting message, however small it is. */
enum { WAITING_BYTES = 512 };

enum { CUT_OFF = 64 };

/* The state of a connection. */
typedef struct {
    pthread_mutex_t lock; /* guards everything below, and the streams */
    nghttp2_session *session; /* NULL: the connection is over */
    GrpcStream *streams, *spare;
    size_t stream_count, spare_count;
    size_t receiving; /* streams with an incomplete message */
    size_t unsent, unsent_counted; /* of all messages that nghttp2 does not have; the counted part (net/limits.h) */
    size_t ungranted; /* bytes of requests whose window is withheld while the client leaves much unread */
    unsigned continuations;
    int32_t newest; /* the largest stream id that the client has begun */
    int32_t
        cut_off[CUT_OFF]; /* the last streams that ended before the client's end of them: more may arrive for these */
    unsigned cut_off_count;
    unsigned turn_messages; /* messages in this turn; used by the loop's thread */
    uint64_t resets, resets_since_ms;
    bool draining, sends_goaway, blocked;
    bool retiring; /* another process replaces this one, and the client has been notified */
    bool greeted; /* the client's first frame has arrived */
    bool in_goaway_grace; /* the deadline is the end of the GOAWAY period */
    bool is_checking; /* the deadline is the next check of the streams */
    GrpcDeferred *deferred_first,
        *deferred_last; /* long messages, of streams in the order of their turns; see deferred_parse.c */
    Timer due; /* the earliest grpc-timeout; used by the loop's thread */
} Session;

static inline Session *session_of(const GrpcStream *stream)
{
    return connection_state(stream->connection);
}

/* ── streams.c; with the lock held ────────────────────────────────────────────────────────────────── */

typedef enum { EVENT_BEGIN, EVENT_MESSAGE, EVENT_HALF_CLOSED, EVENT_CANCELLED, EVENT_REFUSED } EventKind;

/* An event that occurred while the session was locked, delivered to the service afterwards. */
typedef struct {
    EventKind kind;
    GrpcStream *stream; /* held */
    Buffer message;
    uint64_t received; /* its bytes counted in net/limits.h */
    bool compressed;
} Event;

/* Deliver an event to the service when the lock is released. EVENT_MESSAGE: the stream's message, which is complete.
 * Returns false without memory.
 */
bool session_emit(EventKind kind, GrpcStream *stream);
/* Release the lock, free sent messages, and deliver the events that occurred. */
void session_unlock(Session *session, Outgoing *done);
/* NULL without memory. */
GrpcStream *grpc_stream_new(Connection *connection, int32_t id);
/* Called when its last reference is gone; its reference to the connection must still be dropped. */
void grpc_stream_free(GrpcStream *stream);
/* The stream is over; the caller takes over the session's reference. */
void grpc_stream_close(GrpcStream *stream);
/* Return the client's window for what it has sent, unless its stream is held. Sent messages are added to `*done`. */
void grpc_stream_resume(GrpcStream *stream, Outgoing **done);
/* Without the lock: free it. */
void event_drop(Event *event);
/* Without the lock: deliver it to the service, and free it. `deferred`: in a reader thread. */
void event_handle(Event *event, bool deferred);

/* ── deferred_parse.c; without the lock ─────────────────────────────────────────────────────────────────────── */

/* Move an event to another thread, if it takes long, or comes after one that does. */
bool event_defer(Event *event);

/* ── streams.c; with the lock held ────────────────────────────────────────────────────────────────── */

/* Record whether a message is incomplete. */
void session_set_receiving(Session *session, GrpcStream *stream, bool receiving);

/* ── send.c; with the lock held ─────────────────────────────────────────────────────────────── */

/* Returns whether a client leaves so much unread that it may send no more until it has read some of it. */
bool session_is_behind(Connection *connection);
/* Adjust the counted size of the session's messages (net/limits.h). */
void session_count_unsent(Session *session);
/* Set nghttp2's callbacks for sending. */
void session_set_senders(nghttp2_session_callbacks *callbacks);
/* Send as much as the socket takes. Sent messages are added to `*done`. */
void session_push(Connection *connection, Outgoing **done);
/* Drop a stream's unsent messages. */
void grpc_stream_drop(GrpcStream *stream, Outgoing **done);
/* Without the lock: call `sent` of all of them. */
void outgoing_done(Outgoing *done);

/* ── stall_timeout.c; with the lock held, in the loop's thread ────────────────────────────────────────────── */

/* Set the deadline for what the connection waits for now. */
void session_set_deadline(Connection *connection);
/* The deadline has passed: end what has taken too long. */
void session_timed_out(Connection *connection);
/* A call's headers are complete: it ends when its grpc-timeout is over. */
void session_schedule_timeout(GrpcStream *stream);
/* The session's `due` timer: a call may be due. Without the lock. */
void session_timeout_expired(Timer *timer);

/* ── reset_rate_limit.c; with the lock held, in the loop's thread ─────────────────────────────────────────────── */

/* A call has been cancelled. */
void session_count_reset(Connection *connection);
/* Returns whether one more call may begin; otherwise sets the stream's problem. */
bool session_has_resets_left(GrpcStream *stream);

/* ── headers.c ──────────────────────────────────────────────────────────────────────────────── */

/* Store a header; errors are set as the stream's problem. Returns false if there are too many, or without memory. */
bool grpc_stream_header(GrpcStream *stream, Slice name, Slice value, const Limits *limits);
/* Returns whether the headers are those of a call; otherwise sets the stream's problem. */
bool grpc_stream_check(GrpcStream *stream);
/* Write a text for grpc-message: percent-encoded. */
void grpc_put_message(Buffer *to, Slice text);

#endif
