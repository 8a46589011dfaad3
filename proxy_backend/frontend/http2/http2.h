/* gRPC over HTTP/2 (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md): connections, streams and messages.
 * service.c interprets the messages.
 *
 * Locks. A connection's lock guards its nghttp2 session and its streams. The loop's thread takes it to read, a thread
 * with an answer takes it to write. It is never held while the service is called, so the service may send from within.
 */
#ifndef PYTRITON_FRONTEND_HTTP2_H
#define PYTRITON_FRONTEND_HTTP2_H

#include "common/buffer.h"
#include "http2/nghttp2.h"
#include "net/connection.h"

#include <pthread.h>

extern const Protocol GRPC_PROTOCOL;

typedef struct GrpcStream GrpcStream;
typedef struct GrpcDeferred GrpcDeferred;

/* A message to send: `parts` must stay until `sent` is called. */
typedef struct Outgoing {
    struct Outgoing *next; /* http2's, like the next five */
    size_t at, size; /* how much of it has been sent, and its size */
    unsigned part;
    size_t part_at;
    char prefix[5];
    struct iovec *parts;
    unsigned count;
    /* It has been sent, or never will be. No lock is held. */
    void (*sent)(struct Outgoing *message);
} Outgoing;

/* A call: one HTTP/2 stream. */
struct GrpcStream {
    Connection *connection;
    unsigned refs; /* one is the session's, others are the service's */
    int32_t id;
    uint64_t begun_ms;
    Slice path; /* in `headers`, like everything below; "/inference.GRPCInferenceService/ModelInfer" */
    Buffer headers; /* metadata: name, NUL, value, NUL, ... */
    size_t header_count;
    uint64_t timeout_ms; /* of grpc-timeout; 0: none */
    enum { GRPC_IDENTITY, GRPC_GZIP, GRPC_DEFLATE, GRPC_UNKNOWN } encoding;
    bool is_post, is_grpc;
    Problem problem; /* why it is refused; answered as soon as its headers are complete */

    /* The service's: */
    const struct GrpcMethod *method; /* NULL: none has begun */
    bool has_message;
    bool needs_message; /* the client has to send one soon */
    void *service;

    /* http2's, incoming: */
    GrpcStream *next, **link;
    unsigned char prefix[5];
    unsigned prefix_size;
    Buffer message;
    bool compressed;
    BodyCount counted; /* of the message for the service (net/limits.h); the owner of the message takes this over */
    uint64_t received; /* bytes of `message` that are counted so */
    size_t wanted; /* the message's size; it is complete when it has that */
    size_t unconsumed; /* bytes that the client has sent and that have not been granted again */
    bool service_knows; /* the service knows it, or is just being notified */
    bool receiving, ended, closed, paused;
    GrpcDeferred *deferred; /* another thread is reading a long message; deferred_parse.c checks it without the lock */
    size_t header_bytes; /* of all received headers, kept or not */
    /* outgoing: */
    Outgoing *first, **last;
    size_t queued; /* bytes in these messages that nghttp2 does not have */
    size_t waiting; /* the number of these messages */
    size_t newest; /* the size of the last of them */
    Progress inbound, outbound; /* see stall_timeout.c */
    Progress read_progress; /* as `outbound`, for grpc_is_unread alone */
    bool begun, finishing;
    int code;
    Buffer trailer;
};

/* Any thread; a caller whose only reference to the connection is a stream's calls nothing else during this. */
GrpcStream *grpc_ref(GrpcStream *stream);
void grpc_unref(GrpcStream *stream);
/* Send a message; `sent` is called in any case, immediately if the client is gone. Any thread. */
void grpc_send(GrpcStream *stream, Outgoing *message);
/* Send the last message with status OK. Any thread. */
void grpc_respond(GrpcStream *stream, Outgoing *message);
/* Send the status, and `text` if not empty, after all messages. Any thread. */
void grpc_finish(GrpcStream *stream, int code, Slice text);
/* Finish with a problem's status and text. */
void grpc_finish_problem(GrpcStream *stream, const Problem *problem);
/* Returns whether the call is over. A service that registers something for `cancelled` checks this afterwards:
 * the call may have been over before. Any thread.
 */
bool grpc_is_over(GrpcStream *stream);
/* Returns whether the server is about to end, and the client has been notified. Any thread. */
bool grpc_is_draining(GrpcStream *stream);
/* Returns whether the stream is open and its client leaves too much of its answers unread, each counted with its
 * overhead. Any thread.
 */
bool grpc_is_unread(GrpcStream *stream);
/* Stop the client from sending beyond the rest of this stream's window, or resume it. Any thread. */
void grpc_set_paused(GrpcStream *stream, bool paused);
/* Returns the value of a header, the last one of its name; no start: absent. */
Slice grpc_header(const GrpcStream *stream, const char *name);
/* Iterate over all headers; begin with `*at` = 0. */
bool grpc_next_header(const GrpcStream *stream, size_t *at, Slice *name, Slice *value);

#endif
