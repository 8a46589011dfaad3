/* What http2.c, which hears the client, and send.c, which speaks to it, have in common. */
#ifndef PYTRITON_FRONT_HTTP2_SESSION_H
#define PYTRITON_FRONT_HTTP2_SESSION_H

#include "http2/http2.h"

/* What a message that waits costs, however small it is. */
enum { WAITING_BYTES = 512 };

enum { CUT_OFF = 64 };

/* Of one connection: what its Protocol keeps. */
typedef struct {
    pthread_mutex_t lock; /* guards all of it, and the streams */
    nghttp2_session *session; /* NULL: the connection is over */
    GrpcStream *streams, *spare;
    size_t stream_count, spare_count;
    size_t receiving; /* streams with a message that has not come in full */
    size_t unsent,
        unsent_counted; /* of all streams' messages that are not with nghttp2; how much of it is counted (net/limits.h) */
    size_t ungranted; /* bytes of requests that the client may not send again as long as it leaves much unread */
    unsigned continuations;
    int32_t newest; /* the largest id of a stream that the client has begun */
    int32_t cut_off
        [CUT_OFF]; /* the last streams that ended before the client's end of them: more may be on its way for these */
    unsigned cut_off_count;
    unsigned told; /* messages in this turn; the loop's thread's */
    uint64_t resets, resets_since_ms;
    bool draining, goodbye, blocked;
    bool retiring; /* another process takes this one's place, and the client has been told to go there */
    bool greeted; /* the client's first frame has come */
    bool parting; /* the deadline is the goodbye's end */
    bool looking; /* the deadline is the next look at the streams */
    GrpcLate *late_first, *late_last; /* what takes long, of streams in the order of their turns; see late.c */
    Timer due; /* the earliest grpc-timeout; the loop's thread's */
} Session;

static inline Session *session_of(const GrpcStream *stream)
{
    return connection_state(stream->connection);
}

/* ── streams.c; with the lock held ────────────────────────────────────────────────────────────────── */

typedef enum { EVENT_BEGIN, EVENT_MESSAGE, EVENT_HALF_CLOSED, EVENT_CANCELLED, EVENT_REFUSED } EventKind;

/* What came while the session was locked, for the service to hear of afterwards. */
typedef struct {
    EventKind kind;
    GrpcStream *stream; /* held */
    Text message;
    uint64_t received; /* of it, counted in net/limits.h */
    bool compressed;
} Event;

/* Have the service hear of something when the lock is left. Of EVENT_MESSAGE: the stream's message, which is whole. False: there is
 * no memory. */
bool session_tell(EventKind kind, GrpcStream *stream);
/* Leave the lock, let go of what has been sent, and let the service hear what has come meanwhile. */
void session_unlock(Session *session, Outgoing *done);
/* NULL: there is no memory. */
GrpcStream *grpc_stream_new(Connection *connection, int32_t id);
/* Its last reference has gone; the one to the connection is still to be given back. */
void grpc_stream_free(GrpcStream *stream);
/* It is over; the session's reference is the caller's from now on. */
void grpc_stream_close(GrpcStream *stream);
/* Let the client send anew what it has sent, unless its stream is held. What has been sent is added to `*done`. */
void stream_resume(GrpcStream *stream, Outgoing **done);
/* Without the lock: let go of it. */
void event_drop(Event *event);
/* Without the lock: have the service hear of it, and let go of it. `late`: in a thread that reads what takes long. */
void event_handle(Event *event, bool late);

/* ── late.c; without the lock ─────────────────────────────────────────────────────────────────────── */

/* Leave an event to another thread, if it takes long, or comes after one that does. */
bool event_postpone(Event *event);

/* ── streams.c; with the lock held ────────────────────────────────────────────────────────────────── */

/* Whether a message has come in part. */
void session_set_receiving(Session *session, GrpcStream *stream, bool receiving);

/* ── send.c; with the lock held ─────────────────────────────────────────────────────────────── */

/* Whether a client leaves so much unread that it may send no more until it has read some of it. */
bool session_is_behind(Connection *connection);
/* Adjust what is counted of the session's messages (net/limits.h). */
void session_count_unsent(Session *session);
/* What nghttp2 calls to send. */
void session_set_senders(nghttp2_session_callbacks *callbacks);
/* Send what there is to be sent, as much as the socket takes. What has been sent is added to `*done`. */
void session_push(Connection *connection, Outgoing **done);
/* Nothing of a stream is sent any more. */
void grpc_stream_drop(GrpcStream *stream, Outgoing **done);
/* Without the lock: call `sent` of all of them. */
void outgoing_done(Outgoing *done);

/* ── waiting.c; with the lock held, in the loop's thread ────────────────────────────────────────────── */

/* What the connection waits for now sets its deadline. */
void session_set_deadline(Connection *connection);
/* The deadline has passed: end what has been waited for too long. */
void session_timed_out(Connection *connection);
/* A call's headers are there: it ends when its grpc-timeout is over. */
void session_await_due(GrpcStream *stream);
/* The session's `due`: a call may be. Without the lock. */
void session_is_due(Timer *timer);

/* ── resets.c; with the lock held, in the loop's thread ─────────────────────────────────────────────── */

/* A call has been given up. */
void session_count_reset(Connection *connection);
/* Whether one more call may begin; else the stream's problem. */
bool session_has_resets_left(GrpcStream *stream);

/* ── headers.c ──────────────────────────────────────────────────────────────────────────────── */

/* Take in a header; what is wrong with it goes into the stream's problem. False: there are too many, or there is no memory. */
bool grpc_stream_header(GrpcStream *stream, Slice name, Slice value, const Limits *limits);
/* Whether they are those of a call; else the stream's problem. */
bool grpc_stream_check(GrpcStream *stream);
/* Write a text as grpc-message has it: percent-encoded. */
void put_grpc_message(Text *to, Slice text);

#endif
