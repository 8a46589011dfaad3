/* What gRPC's service, which lies above (grpc/service.c), is told of each stream. All of it is called without a lock, in the loop's
 * thread but where it is said; for a stream with a message that takes long to be read, in one of its readers' threads. */
#ifndef PYTRITON_FRONT_HTTP2_SERVICE_H
#define PYTRITON_FRONT_HTTP2_SERVICE_H

#include "background/jobs.h"
#include "http2/http2.h"

/* A call has begun: its headers are there. */
void service_begin(GrpcStream *stream);
/* A message has come. It may be taken, and other memory left for the next one. */
void service_message(GrpcStream *stream, Text *message);
/* Who reads messages that take long; NULL: the loop does. */
Jobs *service_readers(GrpcStream *stream);
/* How large a message of the call may be, as it comes and unpacked. */
uint64_t service_message_bytes(GrpcStream *stream);
/* The client sends no more messages. */
void service_half_closed(GrpcStream *stream);
/* The client has gone or has given up: nobody waits for an answer. Any thread. */
void service_cancelled(GrpcStream *stream);
/* The last reference to a stream has gone: free what `service` has. Any thread, with the connection's lock held. */
void service_gone(GrpcStream *stream);

#endif
