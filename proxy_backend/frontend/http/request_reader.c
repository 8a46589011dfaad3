/* Reads each request into the memory of its call. */
#include "http/connection.h"

#include "base/clock.h"

#include <stdlib.h>

enum {
    FIRST_BYTES = 8 << 10, /* room for a head, and a small body with it */
    STEP_BYTES = 256 << 10, /* at least, of a large body: memory grows as the body arrives, doubling each time */
    MAX_TARGET_BYTES = TARGET_BYTES + 4096,
    BEYOND = 16,
    COUNTED_BYTES = 64 << 10, /* smaller bodies, of which a connection has one, are not counted */
    OVERHEAD_BYTES = 16 << 10, /* extensions and trailers of chunks */
};

static const Limits *limits_of(Connection *connection)
{
    return connection_endpoint(connection)->limits;
}

HttpLimits http_head_limits(const Limits *limits)
{
    return (HttpLimits){.target_bytes = MAX_TARGET_BYTES,
        .header_bytes = limits->header_bytes,
        .headers = (uint32_t)(limits->headers < HTTP_MAX_HEADERS ? limits->headers : HTTP_MAX_HEADERS)};
}

/* Refuse the request and end the connection: the start of the next request is unknown. */
static void refuse(Connection *connection, Problem *problem, Refusal reason)
{
    refusals_count(reason);
    response_refuse(connection, problem);
}

/* Take a call to read into, with data received with the last request. */
static bool begin(Connection *connection, HttpConnection *http)
{
    Problem problem = {0};
    HttpLoop *loop = http_loop(connection, &problem);
    Call *call = loop ? calls_acquire(loop->calls) : NULL;
    if (call)
        text_put_slice(&call->body, text_slice(&http->pending));
    if (call == NULL || !text_reserve(&call->body, FIRST_BYTES)) {
        if (call)
            call_unref(call);
        problem_no_memory(&problem);
        response_refuse(connection, &problem);
        return false;
    }
    text_reset(&http->pending, 0);
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

/* Set the time limit for the client; bytes that trickle in do not extend it. */
static void set_deadline(Connection *connection, HttpConnection *http, HttpDeadline deadline_kind)
{
    const Limits *limits = limits_of(connection);
    if (http->deadline_kind == deadline_kind)
        return;
    http->deadline_kind = deadline_kind;
    http->seen = http->call->body.size;
    connection_set_deadline(connection, deadline_kind == DEADLINE_HEAD ? limits->header_ms : limits->body_ms);
}

/* Cut data of the next request off the end of this one. */
static void cut_pending(HttpConnection *http)
{
    Text *body = &http->call->body;
    text_put(&http->pending, body->data + http->needed, body->size - http->needed);
    body->size = http->needed;
}

/* ── the body ─────────────────────────────────────────────────────────────────────────────────────── */

/* Decode chunks. Returns true when the body is complete. */
static bool decode_chunks(Connection *connection, HttpConnection *http, Slice input)
{
    ChunkLimits limits = {limits_of(connection)->body_bytes, OVERHEAD_BYTES};
    Text *body = &http->call->body;
    Problem problem = {0};
    while (input.size) {
        Slice data;
        HttpResult result = http_chunks(http->chunks, &input, &data, &limits, &problem);
        if (result == HTTP_INVALID) {
            refuse(connection, &problem, problem.kind == PROBLEM_TOO_LARGE ? REFUSED_BODY_BYTES : REFUSED_MALFORMED);
            return false;
        }
        if (data.size && body->data + body->size == data.start) {
            body->size += data.size;
        } else if (data.size && data.start > body->data && data.start < body->data + body->room) {
            memmove(body->data + body->size, data.start, data.size);
            body->size += data.size;
        } else {
            text_put_slice(body, data);
        }
        if (body->failed) {
            problem_no_memory(&problem);
            response_refuse(connection, &problem);
            return false;
        }
        if (result == HTTP_DONE) {
            text_put_slice(&http->pending, input);
            return true;
        }
    }
    return false;
}

/* Some or all of the body has been read with the head. Returns true when the request is complete. */
static bool begin_body(Connection *connection, HttpConnection *http, const HttpHead *head)
{
    Text *body = &http->call->body;
    Problem problem = {0};
    const Limits *limits = limits_of(connection);
    if (head->length > limits->body_bytes) {
        problem_set(&problem, PROBLEM_TOO_LARGE, "the request's body has %llu bytes, more than the limit of %llu",
            (unsigned long long)head->length, (unsigned long long)limits->body_bytes);
        refuse(connection, &problem, REFUSED_BODY_BYTES);
        return false;
    }
    Slice rest = slice_after(text_slice(body), http->head_size);
    http->needed = http->head_size + (size_t)head->length;
    if (head->expects_continue && rest.size == 0 && (head->chunked || head->length)) {
        struct iovec part = {(char *)(uintptr_t)"HTTP/1.1 100 Continue\r\n\r\n", 25};
        connection_write_all(connection, &part, 1);
    }
    if (!head->chunked) {
        http->phase = READS_BODY;
        if (body->size < http->needed)
            return false;
        cut_pending(http);
        return true;
    }
    http->phase = READS_CHUNKS;
    if (http->chunks == NULL)
        http->chunks = malloc(sizeof *http->chunks);
    if (http->chunks == NULL) {
        problem_no_memory(&problem);
        response_refuse(connection, &problem);
        return false;
    }
    memset(http->chunks, 0, offsetof(HttpChunks, text));
    body->size = http->head_size;
    return decode_chunks(connection, http, rest);
}

/* ── the head ─────────────────────────────────────────────────────────────────────────────────────── */

/* Search for the end of the head. Returns true when the request is complete. */
static bool find_head(Connection *connection, HttpConnection *http, HttpLoop *loop)
{
    HttpLimits limits = http_head_limits(limits_of(connection));
    Problem problem = {0};
    Slice bytes = text_slice(&http->call->body);
    HttpResult result = http_find_head(&http->scan, bytes, &limits, &http->head_size, &problem);
    if (result == HTTP_MORE)
        return false;
    if (result == HTTP_INVALID) {
        refuse(connection, &problem, problem.kind == PROBLEM_HEADERS ? REFUSED_HEADER_BYTES : REFUSED_MALFORMED);
        return false;
    }
    if (!http_read_head(&loop->head, (Slice){bytes.start, http->head_size}, &limits, &problem)) {
        refuse(connection, &problem, problem.kind == PROBLEM_HEADERS ? REFUSED_HEADERS : REFUSED_MALFORMED);
        return false;
    }
    return begin_body(connection, http, &loop->head);
}

/* Read available data. Returns whether there was any. */
static bool read_some(Connection *connection, HttpConnection *http, Slice *chunks)
{
    Text *body = &http->call->body;
    size_t room = body->room - body->size;
    char *to;
    if (http->phase == READS_CHUNKS) {
        to = loop_scratch(connection_loop(connection));
        room = LOOP_SCRATCH;
    } else {
        /* Reading a little more than needed shows whether anything else has arrived. */
        size_t more = http->phase == READS_BODY ? http->needed - body->size + BEYOND : FIRST_BYTES;
        size_t step = body->size > STEP_BYTES ? body->size : STEP_BYTES;
        Problem problem = {0};
        if (room < more && !text_reserve(body, more < step ? more : step)) {
            problem_no_memory(&problem);
            response_refuse(connection, &problem);
            return false;
        }
        to = body->data + body->size;
        room = body->room - body->size;
        if (http->phase == READS_BODY && room > more)
            room = more;
    }
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

/* Count received bytes of a body. Returns false if all clients' bodies together are too large. */
static bool count_body(Connection *connection, Call *call)
{
    uint64_t *counted = &call->counted.received;
    uint64_t more = call->body.size - *counted;
    Problem problem = {0};
    if (call->body.size < *counted + COUNTED_BYTES || connection_endpoint(connection)->is_admin)
        return true;
    if (bodies_reserve(limits_of(connection), more, &problem)) {
        *counted += more;
        return true;
    }
    response_refuse(connection, &problem);
    return false;
}

/* ── the request ──────────────────────────────────────────────────────────────────────────────────── */

/* `moved`: the head's bytes may have moved since it was read, or another head has been read since. */
static void run(Connection *connection, HttpConnection *http, HttpLoop *loop, bool moved)
{
    Problem problem = {0};
    HttpLimits limits = http_head_limits(limits_of(connection));
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
    /* Data received with the last request may be all of this one. */
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
        if (!count_body(connection, http->call))
            return false;
        /* A few bytes of chunks may cause much work. */
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
