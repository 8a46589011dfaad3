#include "grpc/service.h"

#include "grpc/health.h"
#include "grpc/methods.h"

#include <stdlib.h>

enum { HEALTH_BYTES = 4096 }; /* Maximum size of a message that contains only the name of a service. */

static const char *const GROUP_NAMES[GROUPS] = {"health", "metadata", "inference", "shared-memory", "model-config",
    "model-repository", "statistics", "trace", "logging"};

bool grpc_group_named(Slice name, GrpcGroup *group)
{
    for (int i = 0; i < GROUPS; i++)
        if (slice_is(name, GROUP_NAMES[i])) {
            *group = (GrpcGroup)i;
            return true;
        }
    return false;
}

static const GrpcService *service_of(const GrpcStream *stream)
{
    return connection_endpoint(stream->connection)->service;
}

/* Compare in constant time. */
static bool is_secret(Slice given, const char *value)
{
    size_t size = strlen(value);
    unsigned char different = given.size != size;
    for (size_t i = 0; i < size && given.size; i++)
        different |= (unsigned char)(given.start[i % given.size] ^ value[i]);
    return !different;
}

static bool is_allowed(GrpcStream *stream, const GrpcMethod *method)
{
    const GrpcRestriction *restriction = &service_of(stream)->restrictions[grpc_method_group(method)];
    if (restriction->header == NULL || connection_endpoint(stream->connection)->is_admin ||
        is_secret(grpc_header(stream, restriction->header), restriction->value))
        return true;
    Problem problem = {0};
    refusals_count(REFUSED_RESTRICTED);
    problem_set(
        &problem, PROBLEM_UNAVAILABLE, "This protocol is restricted, expecting header '%s'", restriction->header);
    grpc_finish_problem(stream, &problem);
    problem_clear(&problem);
    return false;
}

/* Returns whether the request contains the name of a service. The loop reads these messages itself, since a watch
 * belongs to its thread.
 */
static bool is_health(const GrpcMethod *method)
{
    return method && (method->kind == METHOD_CHECK || method->kind == METHOD_WATCH);
}

static ThreadPool *on_readers(GrpcStream *stream)
{
    return is_health(stream->method) ? NULL : service_of(stream)->readers;
}

static uint64_t on_message_bytes(GrpcStream *stream)
{
    uint64_t most = connection_endpoint(stream->connection)->limits->body_bytes;
    return is_health(stream->method) && most > HEALTH_BYTES ? HEALTH_BYTES : most;
}

static void on_begin(GrpcStream *stream)
{
    const GrpcMethod *method = grpc_method(stream->path);
    Problem problem = {0};
    if (method == NULL) {
        problem_set(&problem, PROBLEM_UNSUPPORTED, "there is no method %.*s", SLICE_ARGS(stream->path));
        grpc_finish_problem(stream, &problem);
        problem_clear(&problem);
    } else if (is_allowed(stream, method)) {
        __atomic_store_n(&stream->method, method, __ATOMIC_RELEASE);
        stream->needs_message = method->kind != METHOD_MODEL_STREAM_INFER;
        if (method->kind == METHOD_MODEL_STREAM_INFER)
            infer_stream_begin(stream, &service_of(stream)->infer);
    }
}

static void on_cancelled(GrpcStream *stream);

static void on_message(GrpcStream *stream, Buffer *message)
{
    const GrpcMethod *method = stream->method;
    if (method == NULL)
        return; /* The stream has been answered. */
    if (method->kind == METHOD_MODEL_STREAM_INFER) {
        infer_stream_message(stream, message);
    } else if (stream->has_message) {
        grpc_finish(stream, problem_grpc_code(PROBLEM_UNSUPPORTED), SLICE("the method takes exactly one message"));
        on_cancelled(stream);
    } else {
        stream->has_message = true;
        stream->needs_message = false;
        if (method->kind == METHOD_MODEL_INFER)
            infer_unary(stream, &service_of(stream)->infer, message);
        else if (method->kind == METHOD_WATCH)
            health_watch(stream, service_of(stream), buffer_slice(message));
        else
            method_run(stream, service_of(stream), method, buffer_slice(message));
    }
}

static void on_half_closed(GrpcStream *stream)
{
    const GrpcMethod *method = stream->method;
    if (method == NULL)
        return;
    if (method->kind == METHOD_MODEL_STREAM_INFER)
        infer_stream_half_closed(stream);
    else if (!stream->has_message)
        grpc_finish(
            stream, problem_grpc_code(PROBLEM_UNSUPPORTED), SLICE("the method takes one message, but none was sent"));
}

static void on_cancelled(GrpcStream *stream)
{
    const GrpcMethod *method = __atomic_load_n(&stream->method, __ATOMIC_ACQUIRE);
    if (method == NULL)
        return; /* Streams that begin later find that the service is over. */
    if (method->kind == METHOD_MODEL_STREAM_INFER)
        infer_stream_cancelled(stream);
    else if (method->kind == METHOD_MODEL_INFER)
        infer_unary_cancelled(stream);
    else if (method->kind == METHOD_WATCH)
        health_cancelled(stream);
}

static void on_gone(GrpcStream *stream)
{
    if (stream->method && stream->method->kind == METHOD_MODEL_STREAM_INFER)
        infer_stream_gone(stream);
}

const StreamHandlers GRPC_HANDLERS = {
    .begin = on_begin,
    .message = on_message,
    .readers = on_readers,
    .message_bytes = on_message_bytes,
    .half_closed = on_half_closed,
    .cancelled = on_cancelled,
    .gone = on_gone,
};
