/* What a service does on the events of its streams. grpc/service.c implements gRPC's. All functions are called without
 * a lock, in the loop's thread unless stated otherwise. After a message that takes long to read, they are called in a
 * reader thread.
 */
#ifndef PYTRITON_FRONTEND_HTTP2_SERVICE_H
#define PYTRITON_FRONTEND_HTTP2_SERVICE_H

#include "http2/http2.h"
#include "thread_pool/thread_pool.h"

typedef struct {
    /* A call has begun: its headers are complete. */
    void (*begin)(GrpcStream *stream);
    /* A message has arrived. The service may take its memory, and leave other memory for the next message. */
    void (*message)(GrpcStream *stream, Buffer *message);
    /* Returns the threads that read long messages, or NULL if the loop does. */
    ThreadPool *(*readers)(GrpcStream *stream);
    /* Returns the maximum size of the call's messages, both as received and after decompression. */
    uint64_t (*message_bytes)(GrpcStream *stream);
    /* The client will not send further messages. */
    void (*half_closed)(GrpcStream *stream);
    /* The client has disconnected or cancelled. Any thread. */
    void (*cancelled)(GrpcStream *stream);
    /* The last reference to a stream was dropped: free what its `service` points to. Any thread, with the connection's
     * lock held.
     */
    void (*gone)(GrpcStream *stream);
} StreamHandlers;

/* The beginning of what the `service` of an endpoint for GRPC_PROTOCOL points to. */
typedef struct {
    const StreamHandlers *handlers;
} StreamService;

static inline const StreamHandlers *handlers_of(const GrpcStream *stream)
{
    return ((const StreamService *)connection_endpoint(stream->connection)->service)->handlers;
}

#endif
