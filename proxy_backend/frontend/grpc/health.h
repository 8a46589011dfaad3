/* Watch of grpc.health.v1.Health, which answers with a stream. */
#ifndef PYTRITON_FRONTEND_GRPC_HEALTH_H
#define PYTRITON_FRONTEND_GRPC_HEALTH_H

#include "grpc/service.h"

/* Start a watch. Only in the loop's thread. */
void health_watch(GrpcStream *stream, const GrpcService *service, Slice request);
/* The client has cancelled the watch. Any thread. */
void health_cancelled(GrpcStream *stream);

#endif
