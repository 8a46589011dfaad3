#include "grpc/methods.h"

#include "grpc/method_handlers.h"

#include <stddef.h>
#include <stdlib.h>

#define ENTRY(name, path, request, response, client_streams, server_streams) {path, METHOD_##name, &request, &response},
static const GrpcMethod METHODS_BY_KIND[METHODS] = {GRPC_METHODS(ENTRY)};
#undef ENTRY

/* The handlers of the methods. NULL for inference and Watch. */
static const struct {
    MethodHandler *handle;
    bool is_job; /* it may wait for models that are being loaded, so it runs as a job */
    GrpcGroup group;
} HANDLERS[METHODS] = {
    [METHOD_SERVER_LIVE] = {handle_server_live, false, GROUP_HEALTH},
    [METHOD_SERVER_READY] = {handle_server_ready, false, GROUP_HEALTH},
    [METHOD_MODEL_READY] = {handle_model_ready, false, GROUP_HEALTH},
    [METHOD_CHECK] = {handle_check, false, GROUP_HEALTH},
    [METHOD_WATCH] = {NULL, false, GROUP_HEALTH},
    [METHOD_SERVER_METADATA] = {handle_server_metadata, false, GROUP_METADATA},
    [METHOD_MODEL_METADATA] = {handle_model_metadata, true, GROUP_METADATA},
    [METHOD_MODEL_CONFIG] = {handle_model_config, true, GROUP_MODEL_CONFIG},
    [METHOD_MODEL_STATISTICS] = {handle_model_statistics, true, GROUP_STATISTICS},
    [METHOD_REPOSITORY_INDEX] = {handle_repository_index, true, GROUP_MODEL_REPOSITORY},
    [METHOD_REPOSITORY_MODEL_LOAD] = {handle_load, true, GROUP_MODEL_REPOSITORY},
    [METHOD_REPOSITORY_MODEL_UNLOAD] = {handle_unload, true, GROUP_MODEL_REPOSITORY},
    [METHOD_SYSTEM_SHARED_MEMORY_STATUS] = {handle_system_status, false, GROUP_SHARED_MEMORY},
    [METHOD_SYSTEM_SHARED_MEMORY_REGISTER] = {handle_system_register, false, GROUP_SHARED_MEMORY},
    [METHOD_SYSTEM_SHARED_MEMORY_UNREGISTER] = {handle_system_unregister, false, GROUP_SHARED_MEMORY},
    [METHOD_CUDA_SHARED_MEMORY_STATUS] = {handle_cuda_status, false, GROUP_SHARED_MEMORY},
    [METHOD_CUDA_SHARED_MEMORY_REGISTER] = {handle_cuda_register, true, GROUP_SHARED_MEMORY},
    [METHOD_CUDA_SHARED_MEMORY_UNREGISTER] = {handle_cuda_unregister, true, GROUP_SHARED_MEMORY},
    [METHOD_TRACE_SETTING] = {handle_trace_setting, false, GROUP_TRACE},
    [METHOD_LOG_SETTINGS] = {handle_log_settings, false, GROUP_LOGGING},
    [METHOD_MODEL_INFER] = {NULL, false, GROUP_INFERENCE},
    [METHOD_MODEL_STREAM_INFER] = {NULL, false, GROUP_INFERENCE},
};

const GrpcMethod *grpc_method(Slice path)
{
    for (int kind = 0; kind < METHODS; kind++)
        if (slice_is(path, METHODS_BY_KIND[kind].path))
            return &METHODS_BY_KIND[kind];
    return NULL;
}

GrpcGroup grpc_method_group(const GrpcMethod *method)
{
    return HANDLERS[method->kind].group;
}

/* A call that is being answered, in a job or immediately. Later, its answer. */
typedef struct {
    Job job;
    Outgoing message;
    struct iovec part;
    GrpcStream *stream;
    const GrpcService *service;
    Buffer request, response;
    Problem problem;
    bool fine;
    BodyCount counted; /* the part of `request` that is counted (net/limits.h) */
    ModelWaiter waiter; /* used while it waits for its model */
} Run;

static void run_free(Run *run)
{
    buffer_free(&run->request);
    body_release(&run->counted);
    buffer_free(&run->response);
    problem_clear(&run->problem);
    free(run);
}

static void sent(Outgoing *message)
{
    run_free((Run *)((char *)message - offsetof(Run, message)));
}

static void handle(Run *run)
{
    const GrpcMethod *method = run->stream->method;
    run->fine =
        HANDLERS[method->kind].handle(run->service, method, buffer_slice(&run->request), &run->response, &run->problem);
    if (run->fine && run->response.failed)
        run->fine = problem_no_memory(&run->problem);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem);

static void respond(Run *run)
{
    GrpcStream *stream = run->stream;
    if (!run->fine &&
        pending_models_wait(run->service->server->pending_models, &run->problem, &run->waiter, on_model_settled))
        return; /* The call may have been answered and freed. */
    if (run->fine) {
        run->part = (struct iovec){run->response.data, run->response.size};
        run->message = (Outgoing){.parts = &run->part, .count = run->response.size > 0, .sent = sent};
        grpc_respond(stream, &run->message);
    } else {
        grpc_finish_problem(stream, &run->problem);
        run_free(run);
    }
    grpc_unref(stream);
}

static void run_job(Job *job)
{
    handle((Run *)job); /* The job is the first member. */
}

static void job_done(Job *job)
{
    Run *run = (Run *)job;
    if (job->dropped)
        run->fine = thread_pool_refuse(&run->problem);
    respond(run);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem)
{
    Run *run = (Run *)((char *)waiter - offsetof(Run, waiter));
    buffer_clear(&run->response);
    if (problem->kind == PROBLEM_NONE) {
        if (thread_pool_submit(run->service->jobs, &run->job, &run->problem))
            return;
    } else {
        run->problem = *problem;
        *problem = (Problem){0};
    }
    run->fine = false;
    respond(run);
}

void method_run(GrpcStream *stream, const GrpcService *service, const GrpcMethod *method, Slice message)
{
    Run *run = calloc(1, sizeof *run);
    if (run)
        buffer_put_slice(&run->request, message);
    if (run == NULL || run->request.failed) {
        if (run)
            run_free(run);
        grpc_finish(stream, problem_grpc_code(PROBLEM_UNAVAILABLE), SLICE("no memory for the call"));
        return;
    }
    run->counted = stream->counted;
    stream->counted = (BodyCount){0};
    run->stream = grpc_ref(stream);
    run->service = service;
    run->job = (Job){.run = run_job, .done = job_done};
    if (!HANDLERS[method->kind].is_job)
        handle(run);
    else if (thread_pool_submit(service->jobs, &run->job, &run->problem))
        return; /* cppcheck-suppress memleak ; the job owns it */
    respond(run);
}
