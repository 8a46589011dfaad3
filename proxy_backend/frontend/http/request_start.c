/* Begins to answer a received request: in the loop's thread, or in a reader thread if its size makes reading slow. */
#include "http/connection.h"

#include "http1/encoding.h"

#include <stddef.h>

enum {
    LONG_JSON = 256 << 10, /* bytes; a loop reads them in two milliseconds */
    LONG_BODY = 8 << 20, /* of tensors, whose strings are checked */
    LONG_PACKED = 256, /* bytes that may grow a thousandfold */
};

/* Mark the call as being answered. */
static void begin_response(Connection *connection, HttpConnection *http, const HttpHead *head)
{
    HttpCall *state = http_call(http->call);
    state->connection = connection_ref(connection);
    state->service = connection_endpoint(connection)->service;
    state->keep_alive = head->keep_alive;
    state->is_head = head->method == HTTP_HEAD;
    state->is_old = head->minor == 0;
    state->head_size = http->head_size;
    pthread_mutex_lock(&http->lock);
    http->busy = true;
    http->missed = http->pending.size > 0 || connection_has_unread(connection);
    pthread_mutex_unlock(&http->lock);
}

/* Replace the body after the head with the decompressed one. */
static bool expand(Call *call, size_t head_size, Compression compression, Problem *problem)
{
    const Limits *limits = connection_endpoint(http_call(call)->connection)->limits;
    Text expanded = {0};
    text_put(&expanded, call->body.data, head_size);
    Slice body = slice_after(text_slice(&call->body), head_size);
    if (!compression_expand(compression, body, &expanded, limits->body_bytes, problem)) {
        text_free(&expanded);
        refusals_count(problem->kind == PROBLEM_TOO_LARGE ? REFUSED_BODY_BYTES : REFUSED_MALFORMED);
        return false;
    }
    if (!unpacked_reserve(limits, expanded.size, problem)) {
        text_free(&expanded);
        return false;
    }
    text_free(&call->body);
    body_release(&call->counted);
    call->body = expanded;
    call->counted.unpacked = expanded.size;
    http_call(call)->is_expanded = true;
    return true;
}

/* Answer a request whose head has been read from the call's body. */
static void respond(Call *call, HttpHead *head, Target *target, size_t head_size)
{
    const HttpCall *state = http_call(call);
    const Endpoint *endpoint = connection_endpoint(state->connection);
    HttpLimits limits = http_head_limits(endpoint->limits);
    Problem problem = {0};
    Compression compression;
    bool known = encoding_of_request(head, &compression, &problem);
    if (known && compression != COMPRESSION_NONE && !state->is_expanded)
        known = expand(call, head_size, compression, &problem) &&
            http_read_head(head, (Slice){call->body.data, head_size}, &limits, &problem);
    if (!known || !target_read(target, head->path, &problem)) {
        response_send_problem(call, &problem);
        return;
    }
    HttpRequest request = {.call = call,
        .service = state->service,
        .head = head,
        .target = target,
        .body = slice_after(text_slice(&call->body), head_size),
        .limits = endpoint->limits,
        .is_admin = endpoint->is_admin};
    request_run(&request);
}

/* ── what takes long ──────────────────────────────────────────────────────────────────────────────── */

static bool takes_long(const HttpHead *head, size_t body_size)
{
    Problem ignored = {0};
    Compression compression;
    uint64_t json_size = body_size, said;
    if (body_size <= LONG_PACKED)
        return false;
    if (!encoding_of_request(head, &compression, &ignored)) {
        problem_clear(&ignored);
        return false;
    }
    Slice length = http_header(head, "Inference-Header-Content-Length");
    if (length.start && slice_unsigned(length, &said) && said < json_size)
        json_size = said;
    return compression != COMPRESSION_NONE || json_size > LONG_JSON || body_size > LONG_BODY;
}

static Call *call_of(Job *job)
{
    return ((HttpDeferred *)job)->call;
}

static void deferred_run(Job *job)
{
    (void)job; /* deferred_done does everything: the memory of the job may be reused after the answer */
}

static void deferred_done(Job *job)
{
    Call *call = call_of(job);
    size_t head_size = ((HttpDeferred *)job)->head_size;
    HttpLimits limits = http_head_limits(connection_endpoint(http_call(call)->connection)->limits);
    Problem problem = {0};
    HttpHead head;
    Target target;
    bool goes_on = !job->dropped || thread_pool_refuse(&problem);
    if (goes_on && http_read_head(&head, (Slice){call->body.data, head_size}, &limits, &problem))
        respond(call, &head, &target, head_size);
    else
        response_send_problem(call, &problem);
}

/* The dispatcher's requests do not wait behind clients. */
static void defer_request(Call *call, size_t head_size)
{
    HttpCall *state = http_call(call);
    const HttpSettings *settings = &state->service->settings;
    bool is_admin = connection_endpoint(state->connection)->is_admin;
    Problem problem = {0};
    state->deferred = (HttpDeferred){{.run = deferred_run, .done = deferred_done}, call, head_size};
    if (!thread_pool_submit(is_admin ? settings->jobs : settings->readers, &state->deferred.job, &problem))
        response_send_problem(call, &problem);
}

static void on_model_settled(ModelWaiter *waiter, Problem *problem)
{
    HttpCall *state = (HttpCall *)((char *)waiter - offsetof(HttpCall, waiter));
    if (problem->kind == PROBLEM_NONE)
        defer_request(state->deferred.call, state->head_size);
    else
        response_send_problem(state->deferred.call, problem);
}

bool request_wait_for_model(Call *call, Problem *problem)
{
    HttpCall *state = http_call(call);
    state->deferred.call = call;
    return pending_models_wait(call_server(call)->pending_models, problem, &state->waiter, on_model_settled);
}

void request_start(Connection *connection, HttpConnection *http, HttpLoop *loop)
{
    Call *call = http->call;
    size_t head_size = http->head_size;
    begin_response(connection, http, &loop->head);
    if (takes_long(&loop->head, call->body.size - head_size))
        defer_request(call, head_size);
    else
        respond(call, &loop->head, &loop->target, head_size);
}
