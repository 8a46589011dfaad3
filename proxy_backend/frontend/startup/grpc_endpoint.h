/* Creates the service of a gRPC endpoint from the settings. */
#ifndef PYTRITON_FRONTEND_STARTUP_GRPC_ENDPOINT_H
#define PYTRITON_FRONTEND_STARTUP_GRPC_ENDPOINT_H

#include "grpc/service.h"
#include "startup/settings.h"

/* Create a copy of `service` with its own pool of calls, restrictions and forwarded headers. */
GrpcService *grpc_endpoint_new(
    const GrpcService *service, const CallsSettings *calls, const Settings *settings, Problem *problem);
/* Free a service. Must be called after its last connection. */
void grpc_endpoint_free(GrpcService *service);

#endif
