/* The calls of inference.GRPCInferenceService and grpc.health.v1.Health. */
#ifndef PYTRITON_FRONT_GRPC_SERVICE_H
#define PYTRITON_FRONT_GRPC_SERVICE_H

#include "background/jobs.h"
#include "grpc/headers.h"
#include "grpc/infer.h"
#include "http2/service.h"

/* What calls are grouped into for restrictions, by their names in --grpc-restricted-protocol. */
typedef enum {
    GROUP_HEALTH,
    GROUP_METADATA,
    GROUP_INFERENCE,
    GROUP_SHARED_MEMORY,
    GROUP_MODEL_CONFIG,
    GROUP_MODEL_REPOSITORY,
    GROUP_STATISTICS,
    GROUP_TRACE,
    GROUP_LOGGING,
    GROUPS,
} GrpcGroup;

/* The group of that name; false: there is none. */
bool grpc_group_named(Slice name, GrpcGroup *group);

/* A call of such a group needs a header "triton-grpc-protocol-KEY" with that value. */
typedef struct {
    char *header; /* with its prefix; NULL: the group is not restricted */
    char *value;
} GrpcRestriction;

/* What an endpoint of gRPC serves. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    struct Tracing *tracing;
    Jobs *jobs;
    Jobs *readers; /* of messages that take long to be read */
    InferService infer;
    GrpcRestriction restrictions[GROUPS];
} GrpcService;

#endif
