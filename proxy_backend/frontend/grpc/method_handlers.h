/* Handlers of all methods except inference. Each converts the bytes of a request to those of an answer. Any thread. */
#ifndef PYTRITON_FRONTEND_GRPC_METHOD_HANDLERS_H
#define PYTRITON_FRONTEND_GRPC_METHOD_HANDLERS_H

#include "grpc/methods.h"

typedef bool MethodHandler(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem);

/* ── handle_models.c ──────────────────────────────────────────────────────────────────────────────── */

MethodHandler handle_server_live, handle_server_ready, handle_model_ready, handle_check, handle_server_metadata,
    handle_model_metadata, handle_model_config, handle_model_statistics, handle_repository_index, handle_load,
    handle_unload;

/* ── handle_settings.c ────────────────────────────────────────────────────────────────────────────── */

MethodHandler handle_trace_setting, handle_log_settings;

/* ── handle_memory.c ──────────────────────────────────────────────────────────────────────────────── */

MethodHandler handle_system_status, handle_system_register, handle_system_unregister, handle_cuda_status,
    handle_cuda_register, handle_cuda_unregister;

/* Reads the text and bytes fields of a request. Absent ones are "". */
typedef struct {
    uint32_t number;
    Slice *text;
    uint64_t *value; /* for a number */
} RequestField;
bool read_request_fields(
    const ProtoMessage *message, Slice request, const RequestField *fields, size_t count, Problem *problem);

#endif
