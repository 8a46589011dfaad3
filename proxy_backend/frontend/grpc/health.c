/* grpc.health.v1.Health. Check reports whether the server is ready, Watch also reports each change. The core does not
 * announce changes of its readiness, so it is polled while there is a watch. Each watch belongs to its loop's thread.
 */
#include "grpc/health.h"

#include "grpc/method_handlers.h"

#include <stddef.h>
#include <stdlib.h>

enum { SERVING = 1, NOT_SERVING = 2, SERVICE_UNKNOWN = 3 };
enum { CHECK_INTERVAL_MS = 500 };

static bool read_name(Slice request, Slice *name, Problem *problem)
{
    const RequestField wanted[] = {{HEALTH_CHECK_REQUEST_service, name, NULL}};
    return read_request_fields(&HEALTH_CHECK_REQUEST, request, wanted, 1, problem);
}

static int status_of(bool is_ready)
{
    return is_ready ? SERVING : NOT_SERVING;
}

static bool is_ours(Slice name)
{
    return name.size == 0 || slice_is(name, "inference.GRPCInferenceService") ||
        slice_is(name, "grpc.health.v1.Health");
}

bool handle_check(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Slice name = {0};
    (void)method;
    if (!read_name(request, &name, problem))
        return false;
    if (!is_ours(name))
        return problem_set(problem, PROBLEM_NOT_FOUND, "there is no service of that name");
    proto_put_number(response, HEALTH_CHECK_RESPONSE_status, (uint64_t)status_of(server_is_ready(service->server)));
    return true;
}

/* ── Watch ────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    Timer check;
    GrpcStream *stream; /* a reference is held */
    const GrpcService *service;
    bool is_known; /* the requested service exists */
    int status;    /* the status that was last sent to the client */
} Watcher;

/* A message that contains a status. */
typedef struct {
    Outgoing message;
    struct iovec part;
    Buffer text;
} Notice;

static void on_sent(Outgoing *message)
{
    Notice *notice = (Notice *)((char *)message - offsetof(Notice, message));
    buffer_free(&notice->text);
    free(notice);
}

static void end(Watcher *watcher)
{
    GrpcStream *stream = watcher->stream;
    stream->service = NULL;
    loop_clear_timer(connection_loop(stream->connection), &watcher->check);
    free(watcher);
    grpc_unref(stream);
}

static void fail(GrpcStream *stream, const char *text)
{
    grpc_finish(stream, problem_grpc_code(PROBLEM_UNAVAILABLE), slice_of(text));
    health_cancelled(stream);
}

static void send_status(GrpcStream *stream, int status)
{
    Notice *notice = calloc(1, sizeof *notice);
    if (notice)
        proto_put_number(&notice->text, HEALTH_CHECK_RESPONSE_status, (uint64_t)status);
    if (notice == NULL || notice->text.failed) {
        free(notice);
        fail(stream, "no memory for the answer");
        return;
    }
    notice->part = (struct iovec){notice->text.data, notice->text.size};
    notice->message = (Outgoing){.parts = &notice->part, .count = 1, .sent = on_sent};
    grpc_send(stream, &notice->message);
}

/* Send the status to watchers if it has changed. Sending can free a watcher. */
static void check(Timer *timer)
{
    Watcher *watcher = (Watcher *)((char *)timer - offsetof(Watcher, check));
    GrpcStream *stream = grpc_ref(watcher->stream);
    int status = watcher->is_known ? status_of(server_was_recently_ready(watcher->service->server)) : SERVICE_UNKNOWN;
    bool changed = status != watcher->status;
    watcher->status = status;
    Loop *loop = connection_loop(stream->connection);
    loop_set_timer(loop, timer, loop_now_ms(loop) + CHECK_INTERVAL_MS);
    if (changed)
        send_status(stream, status);
    if (grpc_is_draining(stream))
        fail(stream, "the server is shutting down");
    else if (grpc_is_over(stream))
        health_cancelled(stream);
    grpc_unref(stream);
}

void health_watch(GrpcStream *stream, const GrpcService *service, Slice request)
{
    Slice name = {0};
    Problem problem = {0};
    Watcher *watcher = calloc(1, sizeof *watcher);
    if (!read_name(request, &name, &problem) || watcher == NULL) {
        grpc_finish(stream, problem_grpc_code(watcher ? problem.kind : PROBLEM_UNAVAILABLE),
            slice_of(watcher ? problem_text(&problem) : "no memory for the call"));
        problem_clear(&problem);
        free(watcher);
        return;
    }
    watcher->check.expired = check;
    watcher->stream = grpc_ref(stream);
    watcher->service = service;
    watcher->is_known = is_ours(name);
    stream->service = watcher;
    check(&watcher->check);
}

void health_cancelled(GrpcStream *stream)
{
    /* In other threads, leave this to the next tick of the timer. */
    if (loop_is_here(connection_loop(stream->connection)) && stream->service)
        end(stream->service);
}
