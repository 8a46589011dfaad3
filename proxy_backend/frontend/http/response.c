/* Writes answers, in any thread. Head and body are written in one system call if the socket accepts them. */
#include "http/error_log.h"
#include "http/request.h"
#include "http/typed.h"
#include "http1/encoding.h"
#include "common/json_writer.h"

#include <limits.h>
#include <stdio.h>

enum {
    MORE_HEADERS = 1024, /* HttpCall.headers */
    /* The longest head has 306 bytes, the load report, these, and the media type of a route. */
    HEAD_ROOM = 320 + ROUTE_TYPE_SIZE + LOAD_REPORT_ROOM + MORE_HEADERS,
    PARTS = 64,           /* number of parts per system call */
    SMALL_RESPONSE = 64 << 10,
    MIN_COMPRESSED = 256,   /* smaller bodies would hardly shrink */
};

CallResponse *response_keep_first(HttpCall *state, CallResponse *response)
{
    bool final = response->final, says_something = !response->empty || response->problem.kind != PROBLEM_NONE;
    state->responses += says_something;
    if (state->response == NULL && (final || says_something))
        state->response = response;
    else
        call_response_release(response);
    return final ? state->response : NULL;
}

bool response_begin(Call *call, Problem *problem)
{
    buffer_clear(&call->reply);
    return buffer_extend(&call->reply, HEAD_ROOM) != NULL || problem_no_memory(problem);
}

Slice response_body(const Call *call)
{
    return slice_after(buffer_slice(&call->reply), HEAD_ROOM);
}

/* Append to a head, which has room for all headers written here. */
static char *put(char *at, const char *text)
{
    size_t size = strlen(text);
    memcpy(at, text, size);
    return at + size;
}

static char *put_number(char *at, const char *name, uint64_t value)
{
    char digits[20], *digit = digits + sizeof digits;
    do {
        *--digit = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    at = put(at, name);
    size_t size = (size_t)(digits + sizeof digits - digit);
    memcpy(at, digit, size);
    return put(at + size, "\r\n");
}

static char *put_first(char *at, int status)
{
    if (status == 200)
        return put(at, "HTTP/1.1 200 OK\r\n");
    at = put(at, "HTTP/1.1 ");
    for (int unit = 100; unit; unit /= 10)
        *at++ = (char)('0' + status / unit % 10);
    at = put(at, " ");
    return put(put(at, http_status_reason(status)), "\r\n");
}

static char *put_end(char *at, bool last, bool old)
{
    if (last)
        at = put(at, "Connection: close\r\n");
    else if (old)
        at = put(at, "Connection: keep-alive\r\n");
    return put(at, "\r\n");
}

/* ── a body whose size is known ───────────────────────────────────────────────────────────────────── */

/* Returns whether an answer may wait until its client reads it. A small one always may; it is counted when it has to
 * wait.
 */
static bool may_wait(HttpCall *state, size_t size)
{
    const Endpoint *endpoint = connection_endpoint(state->connection);
    if (size <= SMALL_RESPONSE || endpoint->is_admin || state->unsent)
        return true;
    if (!unsent_reserve(endpoint->limits, 0, size))
        return false;
    state->unsent = size;
    return true;
}

static void count_unsent(HttpCall *state)
{
    for (int i = 0; i < state->part_count; i++)
        state->unsent += state->parts[i].iov_len;
    unsent_add(state->unsent);
}

/* Write what the socket accepts. The rest follows later. */
void response_continue(Call *call)
{
    HttpCall *state = http_call(call);
    while (state->part_count) {
        int count = state->part_count < PARTS ? state->part_count : PARTS;
        size_t offered = 0;
        for (int i = 0; i < count; i++)
            offered += state->parts[i].iov_len;
        ssize_t taken = connection_write(state->connection, state->parts, count);
        if (taken < 0)
            break;
        size_t left = (size_t)taken;
        while (state->part_count && left >= state->parts->iov_len) {
            left -= state->parts->iov_len;
            state->parts++;
            state->part_count--;
        }
        if ((size_t)taken == offered)
            continue;
        state->parts->iov_base = (char *)state->parts->iov_base + left;
        state->parts->iov_len -= left;
        if (state->unsent == 0)
            count_unsent(state);
        http_connection_await_writable(call);
        return;
    }
    http_connection_responded(call);
}

/* Compress the body if it is large enough and the client accepts compression. The parts become one. */
static bool shrink(HttpCall *state, Call *call, struct iovec *parts, int *count)
{
    size_t total = 0;
    for (int i = 0; i < *count; i++)
        total += parts[i].iov_len;
    if (state->compression == COMPRESSION_NONE || total < MIN_COMPRESSED)
        return false;
    Slice *pieces = call_memory(call, (size_t)*count * sizeof *pieces);
    if (pieces == NULL)
        return false;
    for (int i = 0; i < *count; i++)
        pieces[i] = (Slice){parts[i].iov_base, parts[i].iov_len};
    Problem ignored = {0};
    if (!compression_shrink(state->compression, pieces, (size_t)*count, &state->compressed, &ignored)) {
        problem_clear(&ignored);
        buffer_free(&state->compressed);
        return false;
    }
    parts[0] = (struct iovec){state->compressed.data, state->compressed.size};
    *count = 1;
    return true;
}

void response_send(Call *call, int status, const char *type, const struct iovec *parts, int count, size_t json_bytes)
{
    HttpCall *state = http_call(call);
    /* One part each for the head and the beginning of the body, then the given ones. */
    struct iovec *all = call_memory(call, ((size_t)count + 2) * sizeof *all);
    if (all == NULL || call->reply.failed) {
        /* There is not even memory for an error text. */
        state->keep_alive = false;
        http_connection_responded(call);
        return;
    }
    Slice body = response_body(call);
    int bodies = 0;
    if (body.size)
        all[1 + bodies++] = (struct iovec){(char *)(uintptr_t)body.start, body.size};
    for (int i = 0; i < count; i++)
        if (parts[i].iov_len)
            all[1 + bodies++] = parts[i];
    bool shrunk = bodies && shrink(state, call, all + 1, &bodies);
    size_t total = 0;
    for (int i = 0; i < bodies; i++)
        total += all[1 + i].iov_len;
    if (!may_wait(state, total)) {
        Problem problem = {0};
        refusals_count(REFUSED_UNSENT_BYTES);
        unsent_problem(connection_endpoint(state->connection)->limits, &problem);
        response_send_problem(call, &problem);
        return;
    }
    char head[HEAD_ROOM], *at = put_first(head, status);
    at = put(put(put(at, "Content-Type: "), type), "\r\n");
    if (json_bytes)
        at = put_number(at, "Inference-Header-Content-Length: ", json_bytes);
    if (shrunk)
        at = put(put(put(at, "Content-Encoding: "), encoding_name(state->compression)), "\r\n");
    at = load_report_put(at, state->load_report, call_server(call));
    if (status == 405)
        at = put(put(put(at, "Allow: "), state->allow ? state->allow : "GET"), "\r\n");
    if (status == 503 && state->retry_later)
        at = put(at, "Retry-After: 1\r\n");
    if (state->headers)
        at = put(at, state->headers);
    at = put_end(put_number(at, "Content-Length: ", total), http_connection_is_last(call), state->is_old);
    /* Put the head right before the body, so that both are one part. */
    size_t size = (size_t)(at - head);
    memcpy(call->reply.data + HEAD_ROOM - size, head, size);
    all[0] = (struct iovec){call->reply.data + HEAD_ROOM - size, size};
    state->parts = all;
    state->part_count = state->is_head ? 1 : 1 + bodies;
    call_trace_send_start(call);
    if (!state->is_head && bodies && !shrunk && body.size) {
        all[1] = (struct iovec){all[0].iov_base, size + body.size};
        state->parts = all + 1;
        state->part_count = bodies;
    }
    response_continue(call);
}

void response_send_text(Call *call, int status, const char *type, Slice body)
{
    Problem problem = {0};
    if (response_begin(call, &problem))
        buffer_put_slice(&call->reply, body);
    problem_clear(&problem);
    response_send(call, status, type, NULL, 0, 0);
}

/* Returns whether an error says that the request can be retried: the dispatcher's error about a suspended model that
 * does not resume in time ends so (dispatcher/workers/suspension.py). The proxy appends the request's id.
 */
static bool is_retryable(const char *text)
{
    static const char words[] = "try again later", id[] = " [request id: ";
    size_t size = strlen(text), wanted = sizeof words - 1;
    for (const char *at = strstr(text, id); at; at = strstr(at + 1, id))
        size = (size_t)(at - text);
    return size >= wanted && memcmp(text + size - wanted, words, wanted) == 0;
}

void response_send_problem(Call *call, Problem *problem)
{
    HttpCall *state = http_call(call);
    int status = problem_status(problem->kind);
    state->retry_later = is_retryable(problem_text(problem));
    Problem ignored = {0};
    state->compression = COMPRESSION_NONE; /* Clients do not decompress errors. */
    if (!response_begin(call, &ignored)) {
        /* response_send ends the connection. */
    } else if (state->is_typed) {
        status = typed_put_problem(&call->reply, problem);
        state->retry_later = true;
    } else {
        buffer_put_string(&call->reply, "{\"error\":");
        json_put_sanitized(&call->reply, slice_of(problem_text(problem)));
        buffer_put_char(&call->reply, '}');
    }
    error_log_write(call, status, problem);
    problem_clear(&ignored);
    problem_clear(problem);
    response_send(call, status, state->is_typed ? TYPE_PROBLEM : TYPE_JSON, NULL, 0, 0);
}

void response_refuse(Connection *connection, bool is_typed, Problem *problem)
{
    Buffer body = {0};
    if (is_typed) {
        typed_put_problem(&body, problem);
    } else {
        buffer_put_string(&body, "{\"error\":");
        json_put_sanitized(&body, slice_of(problem_text(problem)));
        buffer_put_char(&body, '}');
    }
    char head[HEAD_ROOM], *at = put_first(head, problem_status(problem->kind));
    at = put(put(put(at, "Content-Type: "), is_typed ? TYPE_PROBLEM : TYPE_JSON), "\r\n");
    at = put_end(put_number(at, "Content-Length: ", body.size), true, false);
    struct iovec parts[] = {{head, (size_t)(at - head)}, {body.data, body.size}};
    if (!body.failed)
        connection_write_all(connection, parts, 2);
    buffer_free(&body);
    problem_clear(problem);
    connection_finish(connection);
}

/* ── a body that comes in pieces ──────────────────────────────────────────────────────────────────── */

enum { CHUNK_SIZE_ROOM = 24 };

/* Describe a piece of the body in at most three parts: as a chunk unless the client is too old. Returns their number. */
static int put_chunk(const HttpCall *state, Slice piece, char size[CHUNK_SIZE_ROOM], struct iovec *parts)
{
    struct iovec whole = {(char *)(uintptr_t)piece.start, piece.size};
    if (piece.size == 0 || state->is_head)
        return 0;
    if (state->is_old) {
        parts[0] = whole;
        return 1;
    }
    parts[0] = (struct iovec){size, (size_t)snprintf(size, CHUNK_SIZE_ROOM, "%zx\r\n", piece.size)};
    parts[1] = whole;
    parts[2] = (struct iovec){(char *)(uintptr_t)"\r\n", 2};
    return 3;
}

bool response_open(Call *call, int status, Slice piece)
{
    HttpCall *state = http_call(call);
    char head[HEAD_ROOM], *at = put_first(head, status);
    at = put(at, "Content-Type: text/event-stream; charset=utf-8\r\n");
    /* HTTP/1.0 has no chunks, so the end of the connection marks the end of the body. */
    state->keep_alive &= !state->is_old;
    if (!state->is_old)
        at = put(at, "Transfer-Encoding: chunked\r\n");
    at = load_report_put(at, state->load_report, call_server(call));
    if (state->headers)
        at = put(at, state->headers);
    if (state->relay)
        at = put(at, RELAY_HEADER ": yes\r\n");
    at = put_end(at, http_connection_is_last(call), state->is_old);
    struct iovec parts[4] = {{head, (size_t)(at - head)}};
    char size[CHUNK_SIZE_ROOM];
    int count = 1 + put_chunk(state, piece, size, parts + 1);
    state->begun = true;
    call_trace_send_start(call);
    return http_connection_begin_events(call, parts, count);
}

bool response_send_chunk(Call *call, Slice piece)
{
    const HttpCall *state = http_call(call);
    struct iovec parts[3];
    char size[CHUNK_SIZE_ROOM];
    int count = put_chunk(state, piece, size, parts);
    return count == 0 || connection_write_all(state->connection, parts, count);
}

void response_close(Call *call)
{
    const HttpCall *state = http_call(call);
    struct iovec part = {(char[]){'0', '\r', '\n', '\r', '\n'}, 5};
    http_connection_end_events(call);
    if (!state->is_old && !state->is_head)
        connection_write_all(state->connection, &part, 1);
    http_connection_responded(call);
}
