/* What a service does on the events of its streams; grpc/service.c has gRPC's. All functions are called without a
 * lock, in the loop's thread unless stated otherwise; for a stream with a message that takes long to read, in one of
 * its readers' threads.
 */
#ifndef PYTRITON_FRONTEND_HTTP2_SERVICE_H
#define PYTRITON_FRONTEND_HTTP2_SERVICE_H

#include "http2/http2.h"
#include "thread_pool/thread_pool.h"

typedef struct {
    /* A call has begun: its headers are complete. */
    void (*begin)(GrpcStream *stream);
    /* A message has arrived. The service may take it, and leave other memory for the next one. */
    void (*message)(GrpcStream *stream, Buffer *message);
    /* Returns the threads that read long messages; NULL: the loop does. */
    ThreadPool *(*readers)(GrpcStream *stream);
    /* Returns the maximum size of the call's messages, as received and after decompression. */
    uint64_t (*message_bytes)(GrpcStream *stream);
    /* The client sends no more messages. */
    void (*half_closed)(GrpcStream *stream);
    /* The client has disconnected or cancelled. Any thread. */
    void (*cancelled)(GrpcStream *stream);
    /* The last reference to a stream is gone: free what its `service` has. Any thread, with the connection's lock
     * held.
     */
    void (*gone)(GrpcStream *stream);
} StreamHandlers;

/* `service` of an endpoint for GRPC_PROTOCOL points to a structure that begins with this. */
typedef struct {
    const StreamHandlers *handlers;
} StreamService;

static inline const StreamHandlers *handlers_of(const GrpcStream *stream)
{
    return ((const StreamService *)connection_endpoint(stream->connection)->service)->handlers;
}

#endif
