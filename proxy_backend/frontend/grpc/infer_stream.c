/* ModelStreamInfer: any number of requests on a stream, each with any number of answers. */
#include "grpc/headers.h"
#include "grpc/infer.h"

#include <stddef.h>
#include <stdlib.h>

/* Maximum number of requests of a stream in flight. When it is reached, the client's window stays closed until half of
 * them have ended.
 */
enum { MAX_RUNNING = 512 };

typedef struct Request Request;

/* The state of a stream. References are held by the stream and by each request. */
typedef struct {
    const InferService *service;
    pthread_mutex_t lock; /* guards the fields below */
    unsigned refs;
    Request *requests;
    size_t running;
    bool half_closed, over, paused;
    bool status_errors; /* an error ends the stream with a gRPC status (requested by the header triton_grpc_error) */
} Requests;

/* The state of a call: one request of a stream. */
struct Request {
    Request *next, **link;
    Requests *all;
    GrpcStream *stream; /* a reference, held until the last answer */
    Call *call;
    InferOptions options;
    bool cancelled;
    ModelWaiter waiter; /* used while it waits for its model */
};

static void unref(Requests *requests)
{
    pthread_mutex_lock(&requests->lock);
    bool last = --requests->refs == 0;
    pthread_mutex_unlock(&requests->lock);
    if (last) {
        pthread_mutex_destroy(&requests->lock);
        free(requests);
    }
}

/* Cancel all requests of the stream in the core. */
static void cancel_all(Requests *requests)
{
    for (;;) {
        Call *call = NULL;
        pthread_mutex_lock(&requests->lock);
        requests->over = true;
        for (Request *request = requests->requests; request && call == NULL; request = request->next)
            if (!request->cancelled) {
                request->cancelled = true;
                call = call_ref(request->call);
            }
        pthread_mutex_unlock(&requests->lock);
        if (call == NULL)
            return;
        call_cancel(call);
        call_unref(call);
    }
}

void infer_stream_begin(GrpcStream *stream, const InferService *service)
{
    Requests *requests = calloc(1, sizeof *requests);
    if (requests == NULL) {
        grpc_finish(stream, problem_grpc_code(PROBLEM_UNAVAILABLE), SLICE("no memory for the stream"));
        return;
    }
    pthread_mutex_init(&requests->lock, NULL);
    requests->service = service;
    requests->refs = 1;
    requests->status_errors = slice_is(grpc_header(stream, "triton_grpc_error"), "true");
    __atomic_store_n(&stream->service, requests, __ATOMIC_RELEASE);
    if (grpc_is_over(stream)) /* The stream may have ended before cancellations could be noticed. */
        cancel_all(requests);
}

static void send_error(
    GrpcStream *stream, Requests *requests, ProblemKind kind, const char *text, Slice id, CallResponse *response)
{
    if (requests->status_errors) {
        grpc_finish(stream, problem_grpc_code(kind), slice_of(text));
        if (response)
            call_response_release(response);
        cancel_all(requests);
        return;
    }
    InferReply *reply = infer_reply_error(response, text, id);
    if (reply)
        grpc_send(stream, &reply->message);
}

/* Open or close the client's window according to `paused`. Check again afterwards, since another thread may have
 * changed `paused` and been faster.
 */
static void set_window(GrpcStream *stream, Requests *requests)
{
    pthread_mutex_lock(&requests->lock);
    bool paused = requests->paused, applied;
    do {
        pthread_mutex_unlock(&requests->lock);
        applied = paused;
        grpc_set_paused(stream, applied);
        pthread_mutex_lock(&requests->lock);
        paused = requests->paused;
    } while (paused != applied);
    pthread_mutex_unlock(&requests->lock);
}

/* End a request that has had its last answer, or was not accepted. */
static void end(Request *request)
{
    Requests *requests = request->all;
    GrpcStream *stream = request->stream;
    pthread_mutex_lock(&requests->lock);
    *request->link = request->next;
    if (request->next)
        request->next->link = request->link;
    requests->running--;
    bool all = requests->running == 0 && requests->half_closed;
    bool goes_on = requests->paused && requests->running <= MAX_RUNNING / 2;
    if (goes_on)
        requests->paused = false;
    pthread_mutex_unlock(&requests->lock);
    if (goes_on)
        set_window(stream, requests);
    if (all)
        grpc_finish(stream, 0, SLICE(""));
    unref(requests);
    grpc_unref(stream);
}

static void send_response(Request *request, CallResponse *response)
{
    if (response->problem.kind != PROBLEM_NONE) {
        send_error(request->stream, request->all, response->problem.kind, problem_text(&response->problem),
            request->options.id, response);
    } else if (response->empty && !request->options.empty_final) {
        call_response_release(response);
    } else {
        InferPart part = response->final ? INFER_ENDS : INFER_CONTINUES;
        call_trace_send_start(response->call);
        InferReply *reply = infer_reply_part(response, part);
        if (reply)
            grpc_send(request->stream, &reply->message);
        else
            send_error(request->stream, request->all, PROBLEM_UNAVAILABLE, "no memory for the answer",
                request->options.id, NULL);
    }
}

/* End the stream if the client reads its answers too slowly. Called after each answer. */
static void check_unread(GrpcStream *stream, Requests *requests)
{
    if (!grpc_is_unread(stream))
        return;
    refusals_count(REFUSED_UNSENT_BYTES);
    grpc_finish(stream, problem_grpc_code(PROBLEM_TOO_LARGE), SLICE("the client reads its answers too slowly"));
    cancel_all(requests);
}

static void on_response(Call *call, CallResponse *response)
{
    Request *request = call->state;
    Requests *requests = request->all;
    bool is_final = response->final;
    call_ref(call); /* The answer may hold the last reference. */
    send_response(request, response);
    check_unread(request->stream, requests);
    if (is_final)
        end(request);
    call_unref(call);
}

/* Create a request for a call. Returns NULL if the stream is over. */
static Request *begin(GrpcStream *stream, Requests *requests, Call *call)
{
    Request *request = call->state;
    *request = (Request){.all = requests, .call = call, .stream = grpc_ref(stream)};
    pthread_mutex_lock(&requests->lock);
    if (requests->over) {
        pthread_mutex_unlock(&requests->lock);
        grpc_unref(stream);
        return NULL;
    }
    requests->refs++;
    requests->running++;
    request->next = requests->requests;
    request->link = &requests->requests;
    if (request->next)
        request->next->link = &request->next;
    requests->requests = request;
    bool full = requests->running >= MAX_RUNNING && !requests->paused;
    requests->paused |= full;
    pthread_mutex_unlock(&requests->lock);
    if (full)
        set_window(stream, requests);
    return request;
}

/* Send an error as the answer to a request that could not be started. */
static void fail(Request *request, const Problem *problem)
{
    GrpcStream *stream = request->stream;
    send_error(stream, request->all, problem->kind, problem_text(problem), request->options.id, NULL);
    check_unread(stream, request->all);
    end(request);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem);

/* Start a request. The caller has a reference to the call. */
static void start(Request *request)
{
    const InferService *service = request->all->service;
    Call *call = request->call;
    Problem problem = {0};
    if ((!infer_read(call, service->inputs, &request->options, &problem) ||
            !grpc_forward_headers(request->stream, service->forwarded, call, &problem) ||
            !call_start(call, on_response, &problem)) &&
        !call_wait_for_model(call, &problem, &request->waiter, on_model_settled))
        fail(request, &problem);
    problem_clear(&problem);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem)
{
    Request *request = (Request *)((char *)waiter - offsetof(Request, waiter));
    Call *call = request->call;
    if (problem->kind == PROBLEM_NONE && grpc_is_over(request->stream))
        end(request);
    else if (problem->kind == PROBLEM_NONE)
        start(request);
    else
        fail(request, problem);
    call_unref(call);
}

void infer_stream_message(GrpcStream *stream, Buffer *message)
{
    Requests *requests = stream->service;
    if (requests == NULL)
        return;
    const InferService *service = requests->service;
    Call *call = calls_acquire(service->calls);
    if (call == NULL) {
        send_error(stream, requests, PROBLEM_UNAVAILABLE, "no memory for the request", SLICE(""), NULL);
        return;
    }
    Buffer room = call->body;
    call->body = *message;
    *message = room;
    buffer_clear(message);
    call->counted = stream->counted;
    stream->counted = (BodyCount){0};
    Request *request = begin(stream, requests, call);
    if (request == NULL) {
        call_unref(call);
        return;
    }
    start(request);
    call_unref(call);
}

void infer_stream_half_closed(GrpcStream *stream)
{
    Requests *requests = stream->service;
    if (requests == NULL)
        return;
    pthread_mutex_lock(&requests->lock);
    requests->half_closed = true;
    bool all = requests->running == 0;
    pthread_mutex_unlock(&requests->lock);
    if (all)
        grpc_finish(stream, 0, SLICE(""));
}

void infer_stream_cancelled(GrpcStream *stream)
{
    Requests *requests = __atomic_load_n(&stream->service, __ATOMIC_ACQUIRE);
    if (requests)
        cancel_all(requests);
}

void infer_stream_gone(GrpcStream *stream)
{
    if (stream->service)
        unref(stream->service);
    stream->service = NULL;
}
