/* The events of streams for the gRPC service (grpc/service.c). All functions are called without a lock, in the loop's
 * thread unless stated otherwise; for a stream with a message that takes long to read, in one of its readers'
 * threads.
 */
#ifndef PYTRITON_FRONTEND_HTTP2_SERVICE_H
#define PYTRITON_FRONTEND_HTTP2_SERVICE_H

#include "thread_pool/thread_pool.h"
#include "http2/http2.h"

/* A call has begun: its headers are complete. */
void service_begin(GrpcStream *stream);
/* A message has arrived. The service may take it, and leave other memory for the next one. */
void service_message(GrpcStream *stream, Text *message);
/* Returns the threads that read long messages; NULL: the loop does. */
ThreadPool *service_readers(GrpcStream *stream);
/* Returns the maximum size of the call's messages, as received and after decompression. */
uint64_t service_message_bytes(GrpcStream *stream);
/* The client sends no more messages. */
void service_half_closed(GrpcStream *stream);
/* The client has disconnected or cancelled. Any thread. */
void service_cancelled(GrpcStream *stream);
/* The last reference to a stream is gone: free what `service` has. Any thread, with the connection's lock held. */
void service_gone(GrpcStream *stream);

#endif
