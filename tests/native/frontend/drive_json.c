#include "driver.h"

#include "json/numbers.h"
#include "json/reader.h"
#include "common/json_writer.h"

#include <stdlib.h>

/* Read one value that is no object and no array, and write it. */
static bool copy_simple(Json *json, JsonKind kind, Buffer *response)
{
    Buffer scratch = {0};
    Slice string;
    bool truth;
    int64_t number;
    uint64_t large;
    double decimal;
    if (kind == JSON_STRING && json_string(json, &scratch, &string)) {
        json_put_string(response, string);
    } else if (kind == JSON_NUMBER) {
        if (json_signed(json, &number))
            buffer_put_signed(response, number);
        else if (json_unsigned(json, &large))
            buffer_put_unsigned(response, large);
        else if (json_double(json, &decimal))
            number_put_double(response, decimal);
    } else if (json_bool(json, &truth)) {
        buffer_put_string(response, truth ? "true" : "false");
    } else if (json_null(json)) {
        buffer_put_string(response, "null");
    }
    buffer_free(&scratch);
    return !json_failed(json);
}

/* Whether the innermost object or array has one more part, whose comma and name are written. */
static bool copy_next(Json *json, bool array, bool first, Buffer *response)
{
    Buffer scratch = {0};
    Slice key;
    bool more = array ? json_element(json) : json_member(json, &scratch, &key);
    if (more && !first)
        buffer_put_char(response, ',');
    if (more && !array) {
        json_put_string(response, key);
        buffer_put_char(response, ':');
    }
    buffer_free(&scratch);
    return more;
}

/* Write what is read, by all functions of the reader. */
static void copy_value(Json *json, Buffer *response)
{
    bool arrays[JSON_MAX_DEPTH], first[JSON_MAX_DEPTH];
    int depth = 0;
    do {
        JsonKind kind = json_kind(json);
        bool container = kind == JSON_OBJECT ? json_object(json) : kind == JSON_ARRAY && json_array(json);
        if (container) {
            arrays[depth] = kind == JSON_ARRAY;
            first[depth++] = true;
            buffer_put_char(response, kind == JSON_ARRAY ? '[' : '{');
        } else if (!copy_simple(json, kind, response)) {
            return;
        }
        while (depth > 0 && !copy_next(json, arrays[depth - 1], first[depth - 1], response)) {
            if (json_failed(json))
                return;
            buffer_put_char(response, arrays[--depth] ? ']' : '}');
        }
        if (depth > 0)
            first[depth - 1] = false;
    } while (depth > 0);
}

static Json cut_json(Slice *question)
{
    JsonLimits limits = {.depth = (uint32_t)cut_number(question, 4)};
    limits.values = cut_number(question, 8);
    limits.string_bytes = cut_number(question, 8);
    return json_read(*question, &limits);
}

static void answer_json(Json *json, Buffer *response)
{
    Problem problem = {0};
    if (json_end(json))
        return;
    json_problem(json, "bad JSON", &problem);
    response_send_problem(response, &problem);
}

void run_json(Slice question, Buffer *response)
{
    Json json = cut_json(&question), skipped = json;
    Slice raw;
    copy_value(&json, response);
    bool good = json_end(&json);
    /* What is passed over is judged in the same way, but for numbers that are too large for a double. */
    bool passed = json_raw(&skipped, &raw) && json_end(&skipped);
    if (good != passed && strncmp(json.fault ? json.fault : "", "Number too big", 14) != 0)
        abort();
    answer_json(&json, response);
}

void run_leaves(Slice question, Buffer *response)
{
    Json json = cut_json(&question);
    if (json_array(&json))
        while (json_leaf(&json, 0)) {
            copy_simple(&json, json_kind(&json), response);
            buffer_put_char(response, ' ');
        }
    answer_json(&json, response);
}

/* {"data": ..., "after": ...}: "data" is read when all the rest has been. */
void run_later(Slice question, Buffer *response)
{
    Json json = cut_json(&question), data = {0};
    Buffer scratch = {0};
    Slice key;
    bool saved = false;
    if (json_object(&json))
        while (json_member(&json, &scratch, &key)) {
            if (slice_is(key, "data")) {
                data = json;
                saved = true;
                json_skip(&json);
            } else {
                copy_value(&json, response);
                buffer_put_char(response, ' ');
            }
        }
    if (saved && json_end(&json))
        copy_value(&data, response);
    buffer_free(&scratch);
    answer_json(&json, response);
}

void run_read_double(Slice question, Buffer *response)
{
    Number number;
    double value;
    const char *wrong = question.size ? number_read(question, &number) : "nothing";
    if (wrong == NULL && number.text.size < question.size)
        wrong = "more than a number";
    if (wrong == NULL && !number_double(&number, &value))
        wrong = "too large";
    if (wrong) {
        buffer_clear(response);
        buffer_put_char(response, '-');
        buffer_put_string(response, wrong);
        return;
    }
    buffer_put(response, &value, sizeof value);
}

void run_write_double(Slice question, Buffer *response)
{
    while (question.size) {
        uint64_t bits = cut_number(&question, 8);
        double value;
        memcpy(&value, &bits, sizeof value);
        number_put_double(response, value);
        buffer_put_char(response, ' ');
    }
}

void run_write_float(Slice question, Buffer *response)
{
    while (question.size) {
        uint32_t bits = (uint32_t)cut_number(&question, 4);
        float value;
        memcpy(&value, &bits, sizeof value);
        number_put_float(response, value);
        buffer_put_char(response, ' ');
    }
}

void run_write_string(Slice question, Buffer *response)
{
    if (!json_put_string(response, question)) {
        buffer_clear(response);
        buffer_put_char(response, '-');
        json_put_sanitized(response, question);
    }
}
