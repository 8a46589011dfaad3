/* ModelInfer: one request, one answer. */
#include "grpc/headers.h"
#include "grpc/infer.h"

#include <stddef.h>
#include <stdlib.h>

typedef struct {
    GrpcStream *stream; /* held until the answer */
    Call *call;
    const InferService *service;
    bool answered;
    AwaitedBy waiter; /* while it waits for its model */
    InferReply reply;
} Once;

/* infer_stream.c's state is smaller. */
const size_t INFER_STATE = sizeof(Once);

/* Drop the reference that a stream has to its call: whoever removes the call releases it. */
static void forget(GrpcStream *stream, bool cancel)
{
    Call *call = __atomic_exchange_n(&stream->service, NULL, __ATOMIC_ACQ_REL);
    if (call && cancel)
        call_cancel(call);
    if (call)
        call_unref(call);
}

static void answer_problem(GrpcStream *stream, ProblemKind kind, const char *text)
{
    grpc_finish(stream, problem_grpc_code(kind), slice_of(text));
}

static void answered(Call *call, Answer *answer)
{
    Once *once = call->state;
    GrpcStream *stream = once->stream;
    bool is_final = answer->final, is_first = !once->answered;
    if (!is_first || (answer->empty && !is_final)) {
        answer_release(answer);
    } else {
        once->answered = true;
        if (answer->problem.kind != PROBLEM_NONE) {
            answer_problem(stream, answer->problem.kind, problem_text(&answer->problem));
            answer_release(answer);
        } else if (answer->empty) {
            answer_problem(stream, PROBLEM_INTERNAL, "the model returned no response");
            answer_release(answer);
        } else {
            call_ref(call); /* the call's state has the reply */
            InferReply *reply = infer_reply_once(answer, &once->reply);
            call_sends(call);
            if (reply)
                grpc_answer(stream, &reply->message);
            else
                answer_problem(stream, PROBLEM_UNAVAILABLE, "no memory for the answer");
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
    return headers_forward(stream, service->forwarded, call, problem);
}

static void go_on(AwaitedBy *waiter, Problem *problem);

/* End a call that has not been started. */
static void give_up(GrpcStream *stream, Problem *problem)
{
    if (problem->kind != PROBLEM_NONE)
        grpc_finish_problem(stream, problem);
    forget(stream, false);
    grpc_unref(stream);
}

/* The caller has a reference to the call. If the client cancelled earlier, nobody has cancelled the call yet. */
static void start(Call *call)
{
    Once *once = call->state;
    GrpcStream *stream = once->stream;
    Problem problem = {0};
    if ((grpc_is_over(stream) || !begin(stream, once->service, call, &problem) ||
            !call_start(call, answered, &problem)) &&
        !call_waits(call, &problem, &once->waiter, go_on))
        give_up(stream, &problem);
    problem_clear(&problem);
}

static void go_on(AwaitedBy *waiter, Problem *problem)
{
    Once *once = (Once *)((char *)waiter - offsetof(Once, waiter));
    Call *call = once->call;
    if (problem->kind == PROBLEM_NONE)
        start(call);
    else
        give_up(once->stream, problem);
    call_unref(call);
}

void infer_once(GrpcStream *stream, const InferService *service, Text *message)
{
    Call *call = calls_take(service->calls);
    if (call == NULL) {
        answer_problem(stream, PROBLEM_UNAVAILABLE, "no memory for the request");
        return;
    }
    Text room = call->body;
    call->body = *message;
    *message = room;
    text_clear(message);
    call->counted = stream->counted;
    stream->counted = (BodyCount){0};
    Once *once = call->state;
    once->stream = grpc_ref(stream);
    once->call = call;
    once->service = service;
    __atomic_store_n(&stream->service, call_ref(call), __ATOMIC_RELEASE);
    start(call);
    call_unref(call);
}

void infer_once_cancelled(GrpcStream *stream)
{
    forget(stream, true);
}
