/* The calls of gRPC by their paths, and all of them but inference. */
#ifndef PYTRITON_FRONT_GRPC_METHODS_H
#define PYTRITON_FRONT_GRPC_METHODS_H

#include "protobuf/messages.h"
#include "grpc/service.h"

typedef enum {
#define METHOD(name, path, request, answer, client_streams, server_streams) METHOD_##name,
    GRPC_METHODS(METHOD)
#undef METHOD
        METHODS
} GrpcMethodKind;

typedef struct GrpcMethod {
    const char *path;
    GrpcMethodKind kind;
    const ProtoMessage *request, *answer;
} GrpcMethod;

/* NULL: there is none. */
const GrpcMethod *grpc_method(Slice path);
GrpcGroup grpc_method_group(const GrpcMethod *method);
/* Answer a call, at once or in a job. The message is gone afterwards. */
void method_run(GrpcStream *stream, const GrpcService *service, const GrpcMethod *method, Slice message);

#endif
