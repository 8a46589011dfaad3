/* Reads requests into the memory of their calls. */
#include "common/clock.h"
#include "http/connection.h"
#include "http/error_log.h"
#include "http1/encoding.h"

#include <stddef.h>
#include <stdlib.h>

enum {
    LONG_JSON = 256 << 10, /* bytes; an event loop reads them in two milliseconds */
    LONG_BODY = 8 << 20, /* bytes of tensors, whose strings have to be checked */
    LONG_PACKED = 256, /* bytes, which decompression may multiply by a thousand */
    MAX_TARGET_BYTES = TARGET_BYTES + 4096,
};

static const Limits *limits_of(Connection *connection)
{
    return connection_endpoint(connection)->limits;
}

/* Returns the limits for heads of requests. */
static HttpLimits head_limits(Connection *connection)
{
    const Limits *limits = limits_of(connection);
    return (HttpLimits){.target_bytes = MAX_TARGET_BYTES,
        .header_bytes = limits->header_bytes,
        .headers = (uint32_t)(limits->headers < HTTP_MAX_HEADERS ? limits->headers : HTTP_MAX_HEADERS)};
}

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

/* Replace the body behind the head with the decompressed one. */
static bool expand(Call *call, size_t head_size, Compression compression, Problem *problem)
{
    const Limits *limits = limits_of(http_call(call)->connection);
    Buffer expanded = {0};
    buffer_put(&expanded, call->body.data, head_size);
    Slice body = slice_after(buffer_slice(&call->body), head_size);
    if (!compression_expand(compression, body, &expanded, limits->body_bytes, problem)) {
        buffer_free(&expanded);
        refusals_count(problem->kind == PROBLEM_TOO_LARGE ? REFUSED_BODY_BYTES : REFUSED_MALFORMED);
        return false;
    }
    if (!unpacked_reserve(limits, expanded.size, problem)) {
        buffer_free(&expanded);
        return false;
    }
    buffer_free(&call->body);
    body_release(&call->counted);
    call->body = expanded;
    call->counted.unpacked = expanded.size;
    http_call(call)->is_expanded = true;
    return true;
}

/* Send an error before it is known what the request is for. */
static void send_problem(Call *call, size_t head_size, Problem *problem)
{
    HttpCall *state = http_call(call);
    HttpLimits limits = head_limits(state->connection);
    Problem ignored = {0};
    HttpHead head;
    if (http_read_head(&head, (Slice){call->body.data, head_size}, &limits, &ignored)) {
        state->is_typed = request_is_typed(state->service, head.path);
        error_log_begin(call, &head);
    }
    problem_clear(&ignored);
    response_send_problem(call, problem);
}

/* Answer a request whose head has been parsed. */
static void respond(Call *call, HttpHead *head, Target *target, size_t head_size)
{
    const HttpCall *state = http_call(call);
    const Endpoint *endpoint = connection_endpoint(state->connection);
    HttpLimits limits = head_limits(state->connection);
    Problem problem = {0};
    Compression compression;
    bool known = encoding_of_request(head, &compression, &problem);
    if (known && compression != COMPRESSION_NONE && !state->is_expanded)
        known = expand(call, head_size, compression, &problem) &&
            http_read_head(head, (Slice){call->body.data, head_size}, &limits, &problem);
    if (!known || !target_read(target, head->path, &problem)) {
        send_problem(call, head_size, &problem);
        return;
    }
    HttpRequest request = {.call = call,
        .service = state->service,
        .head = head,
        .target = target,
        .body = slice_after(buffer_slice(&call->body), head_size),
        .limits = endpoint->limits,
        .is_admin = endpoint->is_admin};
    request_run(&request);
}

/* ── what takes long ──────────────────────────────────────────────────────────────────────────────── */

/* Returns whether a reader thread must handle a request, so that the event loop's other connections do not wait. The body of
 * a request to a typed function is passed on unparsed.
 */
static bool takes_long(const HttpService *service, const HttpHead *head, size_t body_size)
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
    else if (json_size > LONG_JSON && request_is_typed(service, head->path))
        json_size = 0;
    return compression != COMPRESSION_NONE || json_size > LONG_JSON || body_size > LONG_BODY;
}

static Call *call_of(Job *job)
{
    return ((HttpDeferred *)job)->call;
}

static void deferred_run(Job *job)
{
    (void)job; /* deferred_done does the work: the job's memory may be reused after the answer. */
}

static void deferred_done(Job *job)
{
    Call *call = call_of(job);
    size_t head_size = ((HttpDeferred *)job)->head_size;
    HttpLimits limits = head_limits(http_call(call)->connection);
    Problem problem = {0};
    HttpHead head;
    Target target;
    bool goes_on = !job->dropped || thread_pool_refuse(&problem);
    if (goes_on && http_read_head(&head, (Slice){call->body.data, head_size}, &limits, &problem))
        respond(call, &head, &target, head_size);
    else
        send_problem(call, head_size, &problem);
}

/* Handle a request in a reader thread. The dispatcher's requests do not wait for clients. */
static void defer_request(Call *call, size_t head_size)
{
    HttpCall *state = http_call(call);
    const HttpSettings *settings = &state->service->settings;
    bool is_admin = connection_endpoint(state->connection)->is_admin;
    Problem problem = {0};
    state->deferred = (HttpDeferred){{.run = deferred_run, .done = deferred_done}, call, head_size};
    if (!thread_pool_submit(is_admin ? settings->jobs : settings->readers, &state->deferred.job, &problem))
        send_problem(call, head_size, &problem);
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

/* A complete request has been read, and its head into `loop`: answer it, here or in another thread (request_reader.c). */
static void request_start(Connection *connection, HttpConnection *http, HttpLoop *loop)
{
    Call *call = http->call;
    size_t head_size = http->head_size;
    begin_response(connection, http, &loop->head);
    if (takes_long(connection_endpoint(connection)->service, &loop->head, call->body.size - head_size))
        defer_request(call, head_size);
    else
        respond(call, &loop->head, &loop->target, head_size);
}

enum {
    FIRST_BYTES = 8 << 10, /* enough for a head and a small body */
    STEP_BYTES = 256 << 10, /* minimum step for a large body, whose memory doubles as it arrives */
    BEYOND = 16,
    COUNTED_BYTES = 64 << 10, /* smaller bodies are not counted; a connection has only one */
    OVERHEAD_BYTES = 16 << 10, /* maximum size of extensions and trailers of chunks */
};

void request_refuse(Connection *connection, const HttpConnection *http, Problem *problem)
{
    HttpLimits limits = head_limits(connection);
    Problem ignored = {0};
    HttpHead head;
    const HttpService *service = connection_endpoint(connection)->service;
    bool is_typed = false;
    if (http->phase != READS_HEAD &&
        http_read_head(&head, (Slice){http->call->body.data, http->head_size}, &limits, &ignored)) {
        is_typed = request_is_typed(service, head.path);
        error_log_refusal(service, &head, problem_status(problem->kind));
    }
    problem_clear(&ignored);
    response_refuse(connection, is_typed, problem);
}

/* Refuse a request, and count the reason. */
static void refuse(Connection *connection, const HttpConnection *http, Problem *problem, Refusal reason)
{
    refusals_count(reason);
    request_refuse(connection, http, problem);
}

/* Acquire a call to read into, and copy data that was received with the previous request. */
static bool begin(Connection *connection, HttpConnection *http)
{
    Problem problem = {0};
    HttpLoop *loop = http_loop(connection, &problem);
    Call *call = loop ? calls_acquire(loop->calls) : NULL;
    if (call)
        buffer_put_slice(&call->body, buffer_slice(&http->pending));
    if (call == NULL || !buffer_reserve(&call->body, FIRST_BYTES)) {
        if (call)
            call_unref(call);
        problem_no_memory(&problem);
        response_refuse(connection, false, &problem);
        return false;
    }
    buffer_reset(&http->pending, 0);
    http->phase = READS_HEAD;
    http->scan = (HttpScan){0};
    pthread_mutex_lock(&http->lock);
    http->call = call;
    pthread_mutex_unlock(&http->lock);
    return true;
}

/* Release the call while no data arrives. */
static void end(HttpConnection *http)
{
    pthread_mutex_lock(&http->lock);
    Call *call = http->call;
    http->call = NULL;
    pthread_mutex_unlock(&http->lock);
    call_unref(call);
}

/* Set the client's time limit. Data that trickles in does not extend it. */
static void set_deadline(Connection *connection, HttpConnection *http, HttpDeadline deadline_kind)
{
    const Limits *limits = limits_of(connection);
    if (http->deadline_kind == deadline_kind)
        return;
    http->deadline_kind = deadline_kind;
    http->seen = http->call->body.size;
    connection_set_deadline(connection, deadline_kind == DEADLINE_HEAD ? limits->header_ms : limits->body_ms);
}

/* Move data of the next request from the end of this one to `pending`. */
static void cut_pending(HttpConnection *http)
{
    Buffer *body = &http->call->body;
    buffer_put(&http->pending, body->data + http->needed, body->size - http->needed);
    body->size = http->needed;
}

/* ── the body ─────────────────────────────────────────────────────────────────────────────────────── */

/* Decode chunks. Returns true when the body is complete. */
static bool decode_chunks(Connection *connection, HttpConnection *http, Slice input)
{
    ChunkLimits limits = {limits_of(connection)->body_bytes, OVERHEAD_BYTES};
    Buffer *body = &http->call->body;
    Problem problem = {0};
    while (input.size) {
        Slice data;
        HttpResult result = http_chunks(http->chunks, &input, &data, &limits, &problem);
        if (result == HTTP_INVALID) {
            refuse(
                connection, http, &problem, problem.kind == PROBLEM_TOO_LARGE ? REFUSED_BODY_BYTES : REFUSED_MALFORMED);
            return false;
        }
        if (data.size && body->data + body->size == data.start) {
            body->size += data.size;
        } else if (data.size && data.start > body->data && data.start < body->data + body->room) {
            memmove(body->data + body->size, data.start, data.size);
            body->size += data.size;
        } else {
            buffer_put_slice(body, data);
        }
        if (body->failed) {
            problem_no_memory(&problem);
            request_refuse(connection, http, &problem);
            return false;
        }
        if (result == HTTP_DONE) {
            buffer_put_slice(&http->pending, input);
            return true;
        }
    }
    return false;
}

/* Handle the part of the body that was read with the head. Returns true if the request is complete. */
static bool begin_body(Connection *connection, HttpConnection *http, const HttpHead *head)
{
    Buffer *body = &http->call->body;
    Problem problem = {0};
    const Limits *limits = limits_of(connection);
    http->phase = head->chunked ? READS_CHUNKS : READS_BODY;
    if (head->length > limits->body_bytes) {
        problem_set(&problem, PROBLEM_TOO_LARGE, "the request's body has %llu bytes, more than the limit of %llu",
            (unsigned long long)head->length, (unsigned long long)limits->body_bytes);
        refuse(connection, http, &problem, REFUSED_BODY_BYTES);
        return false;
    }
    Slice rest = slice_after(buffer_slice(body), http->head_size);
    http->needed = http->head_size + (size_t)head->length;
    if (head->expects_continue && rest.size == 0 && (head->chunked || head->length)) {
        struct iovec part = {(char *)(uintptr_t)"HTTP/1.1 100 Continue\r\n\r\n", 25};
        connection_write_all(connection, &part, 1);
    }
    if (!head->chunked) {
        if (body->size < http->needed)
            return false;
        cut_pending(http);
        return true;
    }
    if (http->chunks == NULL)
        http->chunks = malloc(sizeof *http->chunks);
    if (http->chunks == NULL) {
        problem_no_memory(&problem);
        request_refuse(connection, http, &problem);
        return false;
    }
    memset(http->chunks, 0, offsetof(HttpChunks, text));
    body->size = http->head_size;
    return decode_chunks(connection, http, rest);
}

/* ── the head ─────────────────────────────────────────────────────────────────────────────────────── */

/* Remove the requester's reply to a relay whose stream has ended before the reply arrived (relay.h). */
static void skip_reply(HttpConnection *http)
{
    Buffer *body = &http->call->body;
    if (!http->skips_reply || body->size == 0)
        return;
    http->skips_reply = false;
    if (body->data[0] == 'g' || body->data[0] == 'n')
        memmove(body->data, body->data + 1, --body->size);
}

/* Search for the end of the head. Returns true when the request is complete. */
static bool find_head(Connection *connection, HttpConnection *http, HttpLoop *loop)
{
    HttpLimits limits = head_limits(connection);
    Problem problem = {0};
    skip_reply(http);
    Slice bytes = buffer_slice(&http->call->body);
    HttpResult result = http_find_head(&http->scan, bytes, &limits, &http->head_size, &problem);
    if (result == HTTP_MORE)
        return false;
    if (result == HTTP_INVALID) {
        refuse(connection, http, &problem, problem.kind == PROBLEM_HEADERS ? REFUSED_HEADER_BYTES : REFUSED_MALFORMED);
        return false;
    }
    if (!http_read_head(&loop->head, (Slice){bytes.start, http->head_size}, &limits, &problem)) {
        refuse(connection, http, &problem, problem.kind == PROBLEM_HEADERS ? REFUSED_HEADERS : REFUSED_MALFORMED);
        return false;
    }
    return begin_body(connection, http, &loop->head);
}

/* Read available data. Returns whether there was any. */
static bool read_some(Connection *connection, HttpConnection *http, Slice *chunks)
{
    Buffer *body = &http->call->body;
    size_t room = body->room - body->size;
    char *to;
    if (http->phase == READS_CHUNKS) {
        to = loop_scratch(connection_loop(connection));
        room = LOOP_SCRATCH;
    } else {
        /* Reading more than needed shows whether anything follows. */
        size_t more = http->phase == READS_BODY ? http->needed - body->size + BEYOND : FIRST_BYTES;
        size_t step = body->size > STEP_BYTES ? body->size : STEP_BYTES;
        Problem problem = {0};
        if (room < more && !buffer_reserve(body, more < step ? more : step)) {
            problem_no_memory(&problem);
            request_refuse(connection, http, &problem);
            return false;
        }
        to = body->data + body->size;
        room = body->room - body->size;
        if (http->phase == READS_BODY && room > more)
            room = more;
    }
    /* A read stops at a descriptor, and a short read would count as an empty socket: read the reply's byte alone. */
    if (http->skips_reply)
        room = 1;
    ssize_t size = connection_read(connection, to, room);
    if (size > 0) {
        *chunks = (Slice){to, (size_t)size};
        if (http->phase != READS_CHUNKS)
            body->size += (size_t)size;
        return true;
    }
    if (size == STREAM_END && http->phase == READS_HEAD && body->size == 0)
        connection_finish(connection);
    else if (size < 0)
        connection_abort(connection);
    return false;
}

/* Count the received part of a body. Returns false if the bodies of all clients together are too large. */
static bool count_body(Connection *connection, const HttpConnection *http)
{
    Call *call = http->call;
    uint64_t *counted = &call->counted.received;
    uint64_t more = call->body.size - *counted;
    Problem problem = {0};
    if (call->body.size < *counted + COUNTED_BYTES || connection_endpoint(connection)->is_admin)
        return true;
    if (bodies_reserve(limits_of(connection), more, &problem)) {
        *counted += more;
        return true;
    }
    request_refuse(connection, http, &problem);
    return false;
}

/* ── the request ──────────────────────────────────────────────────────────────────────────────────── */

/* Run a complete request. `moved` means that the parsed head is out of date: its bytes may have moved, or another head
 * has been parsed.
 */
static void run(Connection *connection, HttpConnection *http, HttpLoop *loop, bool moved)
{
    Problem problem = {0};
    HttpLimits limits = head_limits(connection);
    if (moved)
        http_read_head(&loop->head, (Slice){http->call->body.data, http->head_size}, &limits, &problem);
    if (http->deadline_kind != DEADLINE_NONE) {
        http->deadline_kind = DEADLINE_NONE;
        connection_set_deadline(connection, limits_of(connection)->idle_ms);
    }
    request_start(connection, http, loop);
}

bool request_reader_resume(Connection *connection)
{
    HttpConnection *http = connection_state(connection);
    Problem problem = {0};
    if (http->call == NULL && !begin(connection, http))
        return false;
    HttpLoop *loop = http_loop(connection, &problem);
    bool moved = http->phase != READS_HEAD;
    /* The data received with the previous request may be the whole of this one. */
    bool complete = !moved && http->call->body.size && find_head(connection, http, loop);
    Slice received;
    uint64_t since_ns = 0;
    bool waits = false;
    while (!complete && !waits && !connection_is_over(connection) && read_some(connection, http, &received)) {
        moved |= http->phase != READS_HEAD;
        if (http->phase == READS_HEAD)
            complete = find_head(connection, http, loop);
        else if (http->phase == READS_BODY)
            complete = http->call->body.size >= http->needed;
        else
            complete = decode_chunks(connection, http, received);
        if (!count_body(connection, http))
            return false;
        /* Check the time also here: few bytes of chunks can cause much work. */
        if (http->phase == READS_CHUNKS && since_ns == 0)
            since_ns = clock_ns();
        else if (http->phase == READS_CHUNKS)
            waits = !complete && clock_ns() - since_ns >= HTTP_TURN_NS;
    }
    if (waits)
        connection_read_later(connection);
    if (complete && http->phase == READS_BODY)
        cut_pending(http);
    if (complete)
        run(connection, http, loop, moved);
    else if (!connection_is_over(connection)) {
        if (http->phase != READS_HEAD)
            set_deadline(connection, http, DEADLINE_BODY);
        else if (http->call->body.size)
            set_deadline(connection, http, DEADLINE_HEAD);
        else
            end(http);
    }
    return complete;
}
