/* The calls of inference.GRPCInferenceService and grpc.health.v1.Health. All here is called without a lock, in the loop's thread but where it is
 * said. */
#ifndef PYTRITON_FRONT_GRPC_SERVICE_H
#define PYTRITON_FRONT_GRPC_SERVICE_H

#include "grpc/http2.h"

/* A call has begun: its headers are there. */
void service_begin(GrpcStream *stream);
/* A message has come. It may be taken, and other memory left for the next one. */
void service_message(GrpcStream *stream, Text *message);
/* The client sends no more messages. */
void service_half_closed(GrpcStream *stream);
/* The client has gone or has given up: nobody waits for an answer. Any thread. */
void service_cancelled(GrpcStream *stream);

#endif
