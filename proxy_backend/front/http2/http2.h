/* gRPC over HTTP/2 (https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md): connections, streams and messages.
 * What the messages say is service.c's.
 *
 * Locks. A connection's lock guards its session of nghttp2 and its streams. The loop's thread takes it to read, whichever
 * thread has an answer takes it to write. It is never held while the service is called, so the service may send from within.
 */
#ifndef PYTRITON_FRONT_HTTP2_H
#define PYTRITON_FRONT_HTTP2_H

#include "base/text.h"
#include "http2/nghttp2.h"
#include "net/connection.h"

#include <pthread.h>

extern const Protocol GRPC_PROTOCOL;

typedef struct GrpcStream GrpcStream;
typedef struct GrpcLate GrpcLate;

/* A message to send: `parts`, which stay where they are until `sent` is called. */
typedef struct Outgoing {
    struct Outgoing *next; /* http2's, as the next five */
    size_t at, size; /* how much of it has been sent, of how much */
    unsigned part;
    size_t part_at;
    char prefix[5];
    struct iovec *parts;
    unsigned count;
    /* It has been sent, or never will be. No lock is held. */
    void (*sent)(struct Outgoing *message);
} Outgoing;

/* A call: one stream of HTTP/2. */
struct GrpcStream {
    Connection *connection;
    unsigned refs; /* one of the session's, others are the service's */
    int32_t id;
    uint64_t begun_ms;
    Slice path; /* in `headers`, as all that follows; "/inference.GRPCInferenceService/ModelInfer" */
    Text headers; /* metadata: name, NUL, value, NUL, ... */
    size_t header_count;
    uint64_t timeout_ms; /* of grpc-timeout; 0: none */
    enum { GRPC_IDENTITY, GRPC_GZIP, GRPC_DEFLATE, GRPC_UNKNOWN } encoding;
    bool is_post, is_grpc;
    Problem problem; /* why it is refused; it is answered as soon as its headers are there */

    /* The service's: */
    const struct GrpcMethod *method; /* NULL: none has begun */
    bool has_message;
    bool needs_message; /* the client has to send one before long */
    void *service;

    /* http2's: what comes */
    GrpcStream *next, **link;
    unsigned char prefix[5];
    unsigned prefix_size;
    Text message;
    bool compressed;
    BodyCount
        counted; /* of the message that the service gets (net/limits.h); whoever keeps the message takes this over */
    uint64_t received; /* bytes of `message` that are counted so */
    size_t wanted; /* the message's size; it is there when it has that */
    size_t unconsumed; /* bytes that the client has sent and that have not been granted anew */
    bool heard_of; /* the service has been told of it, or is just being told */
    bool receiving, ended, closed, held;
    GrpcLate
        *late; /* a message that takes long is being read by another thread; see late.c, which looks without the lock */
    size_t header_bytes; /* of all that have come, kept or not */
    /* and what goes */
    Outgoing *first, **last;
    size_t queued; /* bytes in these messages that are not with nghttp2 */
    size_t waiting; /* how many messages these are */
    size_t newest; /* the size of the last of them */
    Progress coming, going; /* see waiting.c */
    Progress taking; /* as `going`, for grpc_is_unread alone */
    bool begun, finishing;
    int code;
    Text trailer;
};

/* Any thread; whoever has no reference to the connection but that of a stream calls nothing else meanwhile. */
GrpcStream *grpc_ref(GrpcStream *stream);
void grpc_unref(GrpcStream *stream);
/* Send a message; `sent` is called in any case, at once if the client is gone. Any thread. */
void grpc_send(GrpcStream *stream, Outgoing *message);
/* The same, and say that all is well: it is the last one. Any thread. */
void grpc_answer(GrpcStream *stream, Outgoing *message);
/* Send the status, and `text` if there is one, after all messages. Any thread. */
void grpc_finish(GrpcStream *stream, int code, Slice text);
/* The same of a problem. */
void grpc_finish_problem(GrpcStream *stream, const Problem *problem);
/* Whether nobody waits for it any more. A service that keeps something to be told of in service_cancelled looks here afterwards: it
 * may have been over before. Any thread. */
bool grpc_is_over(GrpcStream *stream);
/* Whether the server is about to end, and the client has been told. Any thread. */
bool grpc_is_leaving(GrpcStream *stream);
/* Whether it goes on though the client leaves too much of its answers unread, with what each costs besides. Any thread. */
bool grpc_is_unread(GrpcStream *stream);
/* Let the client send no more on this stream than what its window has left, or go on. Any thread. */
void grpc_hold(GrpcStream *stream, bool held);
/* The value of a header, the last one of its name; no start: there is none. */
Slice grpc_header(const GrpcStream *stream, const char *name);
/* All of them one after the other; begin with `*at` = 0. */
bool grpc_next_header(const GrpcStream *stream, size_t *at, Slice *name, Slice *value);

#endif
