/* The gRPC services inference.GRPCInferenceService and grpc.health.v1.Health. */
#ifndef PYTRITON_FRONTEND_GRPC_SERVICE_H
#define PYTRITON_FRONTEND_GRPC_SERVICE_H

#include "thread_pool/thread_pool.h"
#include "grpc/headers.h"
#include "grpc/infer.h"
#include "http2/service.h"

/* Groups of methods that can be restricted, named as in --grpc-restricted-protocol. */
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

/* Find a group by name. Returns false if there is none. */
bool grpc_group_named(Slice name, GrpcGroup *group);

/* The header "triton-grpc-protocol-KEY" and its value that the methods of a group require. */
typedef struct {
    char *header; /* its name with the prefix; NULL if the group is not restricted */
    char *value;
} GrpcRestriction;

extern const StreamHandlers GRPC_HANDLERS;

/* The service of a gRPC endpoint. */
typedef struct {
    StreamService base; /* its handlers are GRPC_HANDLERS */
    Server *server;
    SharedMemory *shared_memory;
    struct Tracing *tracing;
    ThreadPool *jobs;
    ThreadPool *readers; /* reads messages that take long to read */
    InferService infer;
    GrpcRestriction restrictions[GROUPS];
} GrpcService;

#endif
