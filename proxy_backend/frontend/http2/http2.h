/* gRPC over HTTP/2 (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md): connections, streams and messages.
 * What the messages mean is up to a service, such as grpc/service.c.
 *
 * Locks. A connection's lock guards its nghttp2 session and its streams. The loop's thread holds it to read, and a
 * thread with an answer holds it to write. It is never held while the service is called, so the service can send.
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

/* A message to send. The memory of `parts` must stay valid until `sent` is called. */
typedef struct Outgoing {
    struct Outgoing *next; /* this and the next five fields are used by http2 only */
    size_t at, size; /* bytes that have been sent, and the total size */
    unsigned part;
    size_t part_at;
    char prefix[5];
    struct iovec *parts;
    unsigned count;
    /* Called when the message has been sent, or never will be. No lock is held. */
    void (*sent)(struct Outgoing *message);
} Outgoing;

/* A gRPC call, which is an HTTP/2 stream. */
struct GrpcStream {
    Connection *connection;
    unsigned refs; /* one reference is the session's, the others are the service's */
    int32_t id;
    uint64_t begun_ms;
    Slice path; /* such as "/inference.GRPCInferenceService/ModelInfer"; in `headers` */
    Buffer headers; /* metadata: name, NUL, value, NUL, and so on */
    size_t header_count;
    uint64_t timeout_ms; /* the grpc-timeout; 0 if there is none */
    enum { GRPC_IDENTITY, GRPC_GZIP, GRPC_DEFLATE, GRPC_UNKNOWN } encoding;
    bool is_post, is_grpc;
    Problem problem; /* why the call is refused; answered when its headers are complete */

    /* For the service: */
    const struct GrpcMethod *method; /* NULL until the call has begun */
    bool has_message;
    bool needs_message; /* the client has to send a message soon */
    void *service;

    /* For http2, incoming: */
    GrpcStream *next, **link;
    unsigned char prefix[5];
    unsigned prefix_size;
    Buffer message;
    bool compressed;
    BodyCount counted; /* the part of `message` that is counted (net/limits.h); passed on with the message */
    uint64_t received; /* bytes of the current message that have been counted */
    size_t wanted; /* size of the current message when it is complete */
    size_t unconsumed; /* bytes from the client for which the flow-control window has not been returned */
    bool service_knows; /* the service has been notified of the call, or is being notified */
    bool receiving, ended, closed, paused;
    /* set while another thread reads a long message; deferred_parse.c reads it without the lock */
    GrpcDeferred *deferred;
    size_t header_bytes; /* size of all received headers, including ignored ones */
    /* Outgoing: */
    Outgoing *first, **last;
    size_t queued; /* bytes of these messages that nghttp2 has not taken */
    size_t waiting; /* number of these messages */
    size_t newest; /* size of the newest of them */
    Progress inbound, outbound; /* used by stall_timeout.c */
    Progress read_progress; /* like `outbound`, but used by grpc_is_unread only */
    bool begun, finishing;
    int code;
    Buffer trailer;
};

/* Any thread. A caller whose only reference to the connection is that of the stream must not call other functions at
 * the same time.
 */
GrpcStream *grpc_ref(GrpcStream *stream);
void grpc_unref(GrpcStream *stream);
/* Send a message. `sent` is called in any case, and immediately if the client is gone. Any thread. */
void grpc_send(GrpcStream *stream, Outgoing *message);
/* Send the last message, with status OK. Any thread. */
void grpc_respond(GrpcStream *stream, Outgoing *message);
/* Send the status after all messages, with `text` unless it is empty. Any thread. */
void grpc_finish(GrpcStream *stream, int code, Slice text);
/* Finish with a problem's status and text. */
void grpc_finish_problem(GrpcStream *stream, const Problem *problem);
/* Returns whether the call is over. A service that sets what `cancelled` needs has to check this afterwards, because
 * the call may have been cancelled before. Any thread.
 */
bool grpc_is_over(GrpcStream *stream);
/* Returns whether the server is about to end and the client has been notified. Any thread. */
bool grpc_is_draining(GrpcStream *stream);
/* Returns whether the stream is open and its client leaves too many answers unread. Each answer counts with some
 * overhead. Any thread.
 */
bool grpc_is_unread(GrpcStream *stream);
/* Pause or resume a client's sending. A paused one can still use up the rest of this stream's window. Any thread. */
void grpc_set_paused(GrpcStream *stream, bool paused);
/* Returns the value of a header, the last one if there are several, or an absent slice. */
Slice grpc_header(const GrpcStream *stream, const char *name);
/* Iterate over all headers. `*at` is 0 at first. Returns false after the last one. */
bool grpc_next_header(const GrpcStream *stream, size_t *at, Slice *name, Slice *value);

#endif
