/* Watch of grpc.health.v1.Health: a stream of answers. */
#ifndef PYTRITON_FRONTEND_GRPC_HEALTH_H
#define PYTRITON_FRONTEND_GRPC_HEALTH_H

#include "grpc/service.h"

/* Loop only. */
void health_watch(GrpcStream *stream, const GrpcService *service, Slice request);
/* Called when the client has cancelled. Any thread. */
void health_cancelled(GrpcStream *stream);

#endif
