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
static void begin_answer(Connection *connection, HttpConnection *http, const HttpHead *head)
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
    if (!unpacked_take(limits, expanded.size, problem)) {
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
static void answer(Call *call, HttpHead *head, Target *target, size_t head_size)
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
        answer_problem(call, &problem);
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
    return ((HttpLate *)job)->call;
}

static void begin_late(Job *job)
{
    (void)job; /* answer_late does everything: the memory of the job may be reused after the answer */
}

static void answer_late(Job *job)
{
    Call *call = call_of(job);
    size_t head_size = ((HttpLate *)job)->head_size;
    HttpLimits limits = http_head_limits(connection_endpoint(http_call(call)->connection)->limits);
    Problem problem = {0};
    HttpHead head;
    Target target;
    bool goes_on = !job->dropped || jobs_refuse(&problem);
    if (goes_on && http_read_head(&head, (Slice){call->body.data, head_size}, &limits, &problem))
        answer(call, &head, &target, head_size);
    else
        answer_problem(call, &problem);
}

/* The dispatcher's requests do not wait behind clients. */
static void give_to_thread(Call *call, size_t head_size)
{
    HttpCall *state = http_call(call);
    const HttpSettings *settings = &state->service->settings;
    bool is_admin = connection_endpoint(state->connection)->is_admin;
    Problem problem = {0};
    state->late = (HttpLate){{.run = begin_late, .done = answer_late}, call, head_size};
    if (!jobs_give(is_admin ? settings->jobs : settings->readers, &state->late.job, &problem))
        answer_problem(call, &problem);
}

static void go_on(AwaitedBy *waiter, Problem *problem)
{
    HttpCall *state = (HttpCall *)((char *)waiter - offsetof(HttpCall, waiter));
    if (problem->kind == PROBLEM_NONE)
        give_to_thread(state->late.call, state->head_size);
    else
        answer_problem(state->late.call, problem);
}

bool request_waits(Call *call, Problem *problem)
{
    HttpCall *state = http_call(call);
    state->late.call = call;
    return awaited_wait(call_server(call)->awaited, problem, &state->waiter, go_on);
}

void request_start(Connection *connection, HttpConnection *http, HttpLoop *loop)
{
    Call *call = http->call;
    size_t head_size = http->head_size;
    begin_answer(connection, http, &loop->head);
    if (takes_long(&loop->head, call->body.size - head_size))
        give_to_thread(call, head_size);
    else
        answer(call, &loop->head, &loop->target, head_size);
}
