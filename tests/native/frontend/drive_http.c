#include "driver.h"

#include "http/route_table.h"
#include "http1/chunks.h"
#include "http1/encoding.h"
#include "http1/target.h"
#include "common/json_writer.h"
#include "net/limits.h"

#include <stdlib.h>

static void put_field(Buffer *response, const char *name, Slice value)
{
    json_put_sanitized(response, slice_of(name));
    buffer_put_char(response, ':');
    if (value.start)
        json_put_sanitized(response, value);
    else
        buffer_put_string(response, "null");
    buffer_put_char(response, ',');
}

static void put_head(Buffer *response, const HttpHead *head, size_t size)
{
    Problem problem = {0};
    Compression compression;
    buffer_put_char(response, '{');
    put_field(response, "method", head->method_name);
    put_field(response, "path", head->path);
    if (encoding_of_request(head, &compression, &problem))
        put_field(response, "encoding", slice_of(encoding_name(compression)));
    problem_clear(&problem);
    buffer_format(response, "\"keep_alive\":%d,\"chunked\":%d,\"expects_continue\":%d,", head->keep_alive,
        head->chunked, head->expects_continue);
    buffer_format(response, "\"length\":%llu,\"size\":%zu,\"headers\":[", (unsigned long long)head->length, size);
    for (uint32_t i = 0; i < head->count; i++) {
        buffer_put_string(response, i ? ",[" : "[");
        json_put_sanitized(response, head->headers[i].name);
        buffer_put_char(response, ',');
        json_put_sanitized(response, head->headers[i].value);
        buffer_put_char(response, ']');
    }
    buffer_put_string(response, "]}");
}

/* Limits, how many bytes come at a time, and the bytes: as a connection would get them. */
void run_head(Slice question, Buffer *response)
{
    HttpLimits limits = {.target_bytes = cut_number(&question, 4)};
    limits.header_bytes = cut_number(&question, 4);
    limits.headers = (uint32_t)cut_number(&question, 4);
    size_t step = cut_number(&question, 4), size = 0;
    HttpScan scan = {0};
    Problem problem = {0};
    HttpResult result = HTTP_MORE;
    for (size_t there = step; result == HTTP_MORE; there += step) {
        Slice copy = apart((Slice){question.start, there < question.size ? there : question.size});
        result = http_find_head(&scan, copy, &limits, &size, &problem);
        free((char *)(uintptr_t)copy.start);
        if (there >= question.size)
            break;
    }
    static HttpHead head;
    if (result == HTTP_MORE) {
        buffer_put_string(response, "null");
        return;
    }
    Slice copy = apart((Slice){question.start, size});
    if (result == HTTP_DONE && http_read_head(&head, copy, &limits, &problem))
        put_head(response, &head, size);
    else
        response_send_problem(response, &problem);
    free((char *)(uintptr_t)copy.start);
}

/* Answers how many bytes were left, and the body. */
void run_chunks(Slice question, Buffer *response)
{
    ChunkLimits limits = {.body_bytes = cut_number(&question, 8)};
    limits.overhead_bytes = cut_number(&question, 8);
    size_t step = cut_number(&question, 4);
    static HttpChunks chunks;
    chunks = (HttpChunks){0};
    Problem problem = {0};
    Buffer body = {0};
    HttpResult result = HTTP_MORE;
    size_t left = 0;
    while (result == HTTP_MORE && question.size) {
        Slice piece = apart((Slice){question.start, step < question.size ? step : question.size}), rest = piece, data;
        question = slice_after(question, piece.size);
        do {
            result = http_chunks(&chunks, &rest, &data, &limits, &problem);
            if (result == HTTP_MORE)
                buffer_put_slice(&body, data);
        } while (result == HTTP_MORE && rest.size);
        left = rest.size + question.size;
        free((char *)(uintptr_t)piece.start);
    }
    if (result == HTTP_INVALID) {
        response_send_problem(response, &problem);
    } else {
        buffer_format(response, "%s %zu ", result == HTTP_DONE ? "done" : "more", left);
        buffer_put_slice(response, buffer_slice(&body));
    }
    buffer_free(&body);
}

void run_target(Slice question, Buffer *response)
{
    static Target target;
    Problem problem = {0};
    if (!target_read(&target, question, &problem)) {
        response_send_problem(response, &problem);
        return;
    }
    for (uint32_t i = 0; i < target.count; i++) {
        buffer_put_string(response, i ? "," : "[");
        json_put_sanitized(response, target.segments[i]);
    }
    buffer_put_char(response, ']');
}

/* The target of a request, and a table of routes: answers the route that is found in it. */
void run_routes(Slice question, Buffer *response)
{
    static Target target;
    Problem problem = {0};
    Routes *routes;
    Slice path = cut_slice(&question), origin = SLICE("https://a.example");
    RouteTable *table = route_table_new();
    if (table == NULL)
        abort();
    if (!target_read(&target, path, &problem) || !route_table_replace(table, question, &problem)) {
        response_send_problem(response, &problem);
    } else {
        const Route *route = route_table_find(table, &target, &routes);
        buffer_format(response, "%s %s %d %d %d", route ? route->path : "none",
            route && route->model ? route->model : "none", route && route->takes_put,
            route && routes_allow_origin(routes, origin), route_table_logs_errors(table));
        if (route)
            routes_release(routes);
    }
    route_table_free(table);
}

/* The value of Accept-Encoding. */
void run_encoding(Slice question, Buffer *response)
{
    static HttpHead head;
    head.count = 1;
    head.headers[0] = (HttpHeader){SLICE("Accept-Encoding"), question};
    buffer_put_string(response, encoding_name(encoding_of_response(&head)));
}

/* A client's limits, then when answers come, what it had read by then, and what was unread: which of them are too many. */
void run_unread(Slice question, Buffer *response)
{
    Limits limits = {.unsent_bytes = cut_number(&question, 8)};
    limits.output_bytes = cut_number(&question, 8);
    limits.unsent_ms = cut_number(&question, 8);
    Progress taking = {0};
    while (question.size) {
        uint64_t now_ms = cut_number(&question, 8);
        taking.bytes = cut_number(&question, 8);
        buffer_put_char(response, limits_are_unread(&limits, &taking, cut_number(&question, 8), now_ms) ? 'x' : '.');
    }
}

/* A client's limit and that of all, then answers: what waits for their clients already, and their sizes. Which of them may wait, and how long clients
 * may then read nothing. */
void run_totals(Slice question, Buffer *response)
{
    Limits limits = {.unsent_bytes = cut_number(&question, 8), .unsent_ms = 60000};
    limits.total_unsent_bytes = cut_number(&question, 8);
    uint64_t taken = 0;
    while (question.size) {
        uint64_t before = cut_number(&question, 8), size = cut_number(&question, 8);
        bool fits = unsent_reserve(&limits, before, size);
        taken += fits ? size : 0;
        buffer_put_char(response, fits ? '.' : 'x');
    }
    buffer_format(response, " %llu", (unsigned long long)unsent_timeout_ms(&limits));
    unsent_release(taken);
}
