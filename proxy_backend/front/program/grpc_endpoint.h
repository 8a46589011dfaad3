/* What an endpoint of gRPC serves, made of the settings. */
#ifndef PYTRITON_FRONT_GRPC_ENDPOINT_H
#define PYTRITON_FRONT_GRPC_ENDPOINT_H

#include "grpc/service.h"
#include "program/settings.h"

/* A copy of `service`, with a pool of calls of its own, restrictions and the headers that are handed on. */
GrpcService *grpc_endpoint_new(
    const GrpcService *service, const CallsSettings *calls, const Settings *settings, Problem *problem);
/* After its last connection. */
void grpc_endpoint_free(GrpcService *service);

#endif
