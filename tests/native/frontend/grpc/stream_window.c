/* infer_stream.c between a stream and calls that do as they are told: whether the client's window is open in the end.
 *
 * The requests of a stream become so many that its window closes. Before the stream hears of that, another thread answers them, or
 * so many of them as the argument says; here it is the same thread, at exactly that point.
 */
#include "grpc/headers.h"
#include "grpc/infer.h"

#include <stdio.h>
#include <stdlib.h>

enum { REQUESTS = 512 }; /* the most that are under way at a time */

static CallOnResponse on_response;
static Call *calls[REQUESTS];
static size_t taken, done;
static size_t early; /* so many are answered before the stream hears that it is held */
static bool held;

static void response(size_t most)
{
    for (; done < most; done++) {
        CallResponse last = {.final = true, .empty = true, .call = calls[done]};
        on_response(calls[done], &last);
    }
}

/* ── models that come when they are asked for: there are none ───────────────────────────────────────── */

bool call_wait_for_model(Call *call, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then)
{
    (void)call;
    (void)problem;
    (void)waiter;
    (void)then;
    return false;
}

/* ── the stream ─────────────────────────────────────────────────────────────────────────────────────── */

void grpc_set_paused(GrpcStream *stream, bool is_held)
{
    (void)stream;
    if (is_held)
        response(early);
    held = is_held;
}

GrpcStream *grpc_ref(GrpcStream *stream)
{
    return stream;
}

void grpc_unref(GrpcStream *stream)
{
    (void)stream;
}

bool grpc_is_over(GrpcStream *stream)
{
    (void)stream;
    return false;
}

bool grpc_is_unread(GrpcStream *stream)
{
    (void)stream;
    return false;
}

Slice grpc_header(const GrpcStream *stream, const char *name)
{
    (void)stream;
    (void)name;
    return (Slice){0};
}

void grpc_send(GrpcStream *stream, Outgoing *message)
{
    (void)stream;
    (void)message;
}

void grpc_finish(GrpcStream *stream, int code, Slice text)
{
    (void)stream;
    (void)code;
    (void)text;
}

/* ── the calls ──────────────────────────────────────────────────────────────────────────────────────── */

Call *calls_acquire(Calls *pool)
{
    (void)pool;
    Call *call = calloc(1, sizeof *call);
    call->state = calloc(1, 1024);
    return calls[taken++] = call;
}

bool call_start(Call *call, CallOnResponse callback, Problem *problem)
{
    (void)call;
    (void)problem;
    on_response = callback;
    return true;
}

Call *call_ref(Call *call)
{
    return call;
}

void call_unref(Call *call)
{
    (void)call;
}

void call_cancel(Call *call)
{
    (void)call;
}

void call_trace_send_start(Call *call)
{
    (void)call;
}

void call_response_release(CallResponse *response)
{
    (void)response;
}

bool infer_read(Call *call, uint64_t max_inputs, InferOptions *options, Problem *problem)
{
    (void)call;
    (void)max_inputs;
    (void)options;
    (void)problem;
    return true;
}

bool grpc_forward_headers(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem)
{
    (void)stream;
    (void)pattern;
    (void)call;
    (void)problem;
    return true;
}

InferReply *infer_reply_part(CallResponse *response, InferPart part)
{
    (void)response;
    (void)part;
    return NULL;
}

InferReply *infer_reply_error(CallResponse *response, const char *text, Slice id)
{
    (void)response;
    (void)text;
    (void)id;
    return NULL;
}

int main(int count, char **arguments)
{
    InferService service = {0};
    GrpcStream stream = {0};
    Buffer message = {0};
    early = count > 1 ? strtoul(arguments[1], NULL, 10) : 0;
    infer_stream_begin(&stream, &service);
    for (size_t i = 0; i < REQUESTS; i++)
        infer_stream_message(&stream, &message);
    printf("%s, ", held ? "held" : "open");
    response(REQUESTS);
    printf("%s\n", held ? "held" : "open");
    for (size_t i = 0; i < REQUESTS; i++) {
        free(calls[i]->state);
        free(calls[i]);
    }
    infer_stream_gone(&stream);
    return 0;
}
