/* The gRPC methods by path, and the implementation of all except inference. */
#ifndef PYTRITON_FRONTEND_GRPC_METHODS_H
#define PYTRITON_FRONTEND_GRPC_METHODS_H

#include "protobuf/messages.h"
#include "grpc/service.h"

typedef enum {
#define METHOD(name, path, request, response, client_streams, server_streams) METHOD_##name,
    GRPC_METHODS(METHOD)
#undef METHOD
        METHODS
} GrpcMethodKind;

typedef struct GrpcMethod {
    const char *path;
    GrpcMethodKind kind;
    const ProtoMessage *request, *response;
} GrpcMethod;

/* Returns the method with this path, or NULL. */
const GrpcMethod *grpc_method(Slice path);
GrpcGroup grpc_method_group(const GrpcMethod *method);
/* Answer a call, immediately or in a job. Takes ownership of the message. */
void method_run(GrpcStream *stream, const GrpcService *service, const GrpcMethod *method, Slice message);

#endif
