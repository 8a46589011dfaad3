/* What gRPC's service, which lies above (grpc/service.c), is told of each stream. All of it is called without a lock, in the loop's
 * thread but where it is said. */
#ifndef PYTRITON_FRONT_HTTP2_SERVICE_H
#define PYTRITON_FRONT_HTTP2_SERVICE_H

#include "http2/http2.h"

/* A call has begun: its headers are there. */
void service_begin(GrpcStream *stream);
/* A message has come. It may be taken, and other memory left for the next one. */
void service_message(GrpcStream *stream, Text *message);
/* The client sends no more messages. */
void service_half_closed(GrpcStream *stream);
/* The client has gone or has given up: nobody waits for an answer. Any thread. */
void service_cancelled(GrpcStream *stream);
/* The last reference to a stream has gone: free what `service` has. Any thread, with the connection's lock held. */
void service_gone(GrpcStream *stream);

#endif
