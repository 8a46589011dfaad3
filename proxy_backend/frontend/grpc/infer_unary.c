/* ModelInfer: one request, one answer. */
#include "grpc/headers.h"
#include "grpc/infer.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct {
    GrpcStream *stream; /* a reference, held until the answer */
    Call *call;
    const InferService *service;
    bool on_answer;
    ModelWaiter waiter; /* used while it waits for its model */
    InferReply reply;
} UnaryInfer;

/* The state in infer_stream.c is smaller. */
const size_t INFER_STATE = sizeof(UnaryInfer);

/* Take the call from a stream, and drop the reference that the stream has to it. If both the end and a cancellation
 * try, only one succeeds.
 */
static void forget(GrpcStream *stream, bool cancel)
{
    Call *call = __atomic_exchange_n(&stream->service, NULL, __ATOMIC_ACQ_REL);
    if (call && cancel)
        call_cancel(call);
    if (call)
        call_unref(call);
}

static void response_send_problem(GrpcStream *stream, ProblemKind kind, const char *text)
{
    grpc_finish(stream, problem_grpc_code(kind), slice_of(text));
}

static void on_answer(Call *call, CallResponse *response)
{
    UnaryInfer *unary = call->state;
    GrpcStream *stream = unary->stream;
    bool is_final = response->final, is_first = !unary->on_answer;
    if (!is_first || (response->empty && !is_final)) {
        call_response_release(response);
    } else {
        unary->on_answer = true;
        if (response->problem.kind != PROBLEM_NONE) {
            response_send_problem(stream, response->problem.kind, problem_text(&response->problem));
            call_response_release(response);
        } else if (response->empty) {
            response_send_problem(stream, PROBLEM_INTERNAL, "the model returned no response");
            call_response_release(response);
        } else {
            call_ref(call); /* Keep the call until the reply, which is in its state, has been sent. */
            InferReply *reply = infer_reply_unary(response, &unary->reply);
            call_trace_send_start(call);
            if (reply)
                grpc_respond(stream, &reply->message);
            else
                response_send_problem(stream, PROBLEM_UNAVAILABLE, "no memory for the answer");
            call_unref(call);
        }
    }
    if (is_final) {
        forget(stream, false);
        grpc_unref(stream);
    }
}

static bool begin(GrpcStream *stream, const InferService *service, Call *call, Problem *problem)
{
    InferOptions options = {0};
    if (!infer_read(call, service->inputs, &options, problem))
        return false;
    if (call->decoupled)
        return problem_set(
            problem, PROBLEM_UNSUPPORTED, "ModelInfer RPC doesn't support models with decoupled transaction policy");
    return grpc_forward_headers(stream, service->forwarded, call, problem);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem);

/* Answer a call that could not be started. */
static void fail(GrpcStream *stream, Problem *problem)
{
    if (problem->kind != PROBLEM_NONE)
        grpc_finish_problem(stream, problem);
    forget(stream, false);
    grpc_unref(stream);
}

/* Start a call, to which the caller has a reference, unless the client has already cancelled. */
static void start(Call *call)
{
    UnaryInfer *unary = call->state;
    GrpcStream *stream = unary->stream;
    Problem problem = {0};
    if ((grpc_is_over(stream) || !begin(stream, unary->service, call, &problem) ||
            !call_start(call, on_answer, &problem)) &&
        !call_wait_for_model(call, &problem, &unary->waiter, on_model_settled))
        fail(stream, &problem);
    problem_clear(&problem);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem)
{
    UnaryInfer *unary = (UnaryInfer *)((char *)waiter - offsetof(UnaryInfer, waiter));
    Call *call = unary->call;
    if (problem->kind == PROBLEM_NONE)
        start(call);
    else
        fail(unary->stream, problem);
    call_unref(call);
}

void infer_unary(GrpcStream *stream, const InferService *service, Buffer *message)
{
    Call *call = calls_acquire(service->calls);
    if (call == NULL) {
        response_send_problem(stream, PROBLEM_UNAVAILABLE, "no memory for the request");
        return;
    }
    Buffer room = call->body;
    call->body = *message;
    *message = room;
    buffer_clear(message);
    call->counted = stream->counted;
    stream->counted = (BodyCount){0};
    UnaryInfer *unary = call->state;
    unary->stream = grpc_ref(stream);
    unary->call = call;
    unary->service = service;
    __atomic_store_n(&stream->service, call_ref(call), __ATOMIC_RELEASE);
    start(call);
    call_unref(call);
}

void infer_unary_cancelled(GrpcStream *stream)
{
    forget(stream, true);
}
