#include "driver.h"

#include "http1/chunks.h"
#include "http1/encoding.h"
#include "http1/target.h"
#include "json/writer.h"
#include "net/limits.h"

#include <stdlib.h>

static void put_field(Text *answer, const char *name, Slice value)
{
    json_put_mended(answer, slice_of(name));
    text_put_char(answer, ':');
    if (value.start)
        json_put_mended(answer, value);
    else
        text_put_string(answer, "null");
    text_put_char(answer, ',');
}

static void put_head(Text *answer, const HttpHead *head, size_t size)
{
    Problem problem = {0};
    Compression compression;
    text_put_char(answer, '{');
    put_field(answer, "method", head->method_name);
    put_field(answer, "path", head->path);
    put_field(answer, "query", head->query);
    if (encoding_of_request(head, &compression, &problem))
        put_field(answer, "encoding", slice_of(encoding_name(compression)));
    problem_clear(&problem);
    put_field(answer, "answer", slice_of(encoding_name(encoding_of_answer(head))));
    text_format(answer, "\"minor\":%d,\"keep_alive\":%d,\"chunked\":%d,\"expects_continue\":%d,\"has_length\":%d,",
        head->minor, head->keep_alive, head->chunked, head->expects_continue, head->has_length);
    text_format(answer, "\"length\":%llu,\"size\":%zu,\"headers\":[", (unsigned long long)head->length, size);
    for (uint32_t i = 0; i < head->count; i++) {
        text_put_string(answer, i ? ",[" : "[");
        json_put_mended(answer, head->headers[i].name);
        text_put_char(answer, ',');
        json_put_mended(answer, head->headers[i].value);
        text_put_char(answer, ']');
    }
    text_put_string(answer, "]}");
}

/* Limits, how many bytes come at a time, and the bytes: as a connection would get them. */
void run_head(Slice question, Text *answer)
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
        text_put_string(answer, "null");
        return;
    }
    Slice copy = apart((Slice){question.start, size});
    if (result == HTTP_DONE && http_read_head(&head, copy, &limits, &problem))
        put_head(answer, &head, size);
    else
        answer_problem(answer, &problem);
    free((char *)(uintptr_t)copy.start);
}

/* Answers how many bytes were left, and the body. */
void run_chunks(Slice question, Text *answer)
{
    ChunkLimits limits = {.body_bytes = cut_number(&question, 8)};
    limits.overhead_bytes = cut_number(&question, 8);
    size_t step = cut_number(&question, 4);
    static HttpChunks chunks;
    chunks = (HttpChunks){0};
    Problem problem = {0};
    Text body = {0};
    HttpResult result = HTTP_MORE;
    size_t left = 0;
    while (result == HTTP_MORE && question.size) {
        Slice piece = apart((Slice){question.start, step < question.size ? step : question.size}), rest = piece, data;
        question = slice_after(question, piece.size);
        do {
            result = http_chunks(&chunks, &rest, &data, &limits, &problem);
            if (result == HTTP_MORE)
                text_put_slice(&body, data);
        } while (result == HTTP_MORE && rest.size);
        left = rest.size + question.size;
        free((char *)(uintptr_t)piece.start);
    }
    if (result == HTTP_WRONG) {
        answer_problem(answer, &problem);
    } else {
        text_format(answer, "%s %zu ", result == HTTP_DONE ? "done" : "more", left);
        text_put_slice(answer, text_slice(&body));
    }
    text_free(&body);
}

void run_target(Slice question, Text *answer)
{
    static Target target;
    Problem problem = {0};
    if (!target_read(&target, question, &problem)) {
        answer_problem(answer, &problem);
        return;
    }
    for (uint32_t i = 0; i < target.count; i++) {
        text_put_string(answer, i ? "," : "[");
        json_put_mended(answer, target.segments[i]);
    }
    text_put_char(answer, ']');
}

/* The value of Accept-Encoding. */
void run_encoding(Slice question, Text *answer)
{
    static HttpHead head;
    head.count = 1;
    head.headers[0] = (HttpHeader){SLICE("Accept-Encoding"), question};
    text_put_string(answer, encoding_name(encoding_of_answer(&head)));
}

/* A client's limits, then when answers come, what it had read by then, and what was unread: which of them are too many. */
void run_unread(Slice question, Text *answer)
{
    Limits limits = {.unsent_bytes = cut_number(&question, 8)};
    limits.output_bytes = cut_number(&question, 8);
    limits.unsent_ms = cut_number(&question, 8);
    Progress taking = {0};
    while (question.size) {
        uint64_t now_ms = cut_number(&question, 8);
        taking.bytes = cut_number(&question, 8);
        text_put_char(answer, limits_are_unread(&limits, &taking, cut_number(&question, 8), now_ms) ? 'x' : '.');
    }
}

/* A client's limit and that of all, then answers: what waits for their clients already, and their sizes. Which of them may wait, and how long clients
 * may then read nothing. */
void run_totals(Slice question, Text *answer)
{
    Limits limits = {.unsent_bytes = cut_number(&question, 8), .unsent_ms = 60000};
    limits.total_unsent_bytes = cut_number(&question, 8);
    uint64_t taken = 0;
    while (question.size) {
        uint64_t before = cut_number(&question, 8), size = cut_number(&question, 8);
        bool fits = unsent_take(&limits, before, size);
        taken += fits ? size : 0;
        text_put_char(answer, fits ? '.' : 'x');
    }
    text_format(answer, " %llu", (unsigned long long)unsent_patience_ms(&limits));
    unsent_release(taken);
}
