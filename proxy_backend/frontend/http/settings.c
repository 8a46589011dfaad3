/* Endpoints for log and trace settings. Unknown settings are ignored, as in Triton. */
#include "admin/log_settings.h"
#include "admin/trace_settings.h"

#include "http/request.h"
#include "json/reader.h"

enum { MAX_CHANGES = 16, MAX_LEVELS = 8 };

static const char parsing[] = "failed to parse the request JSON buffer";

static Server *server_of(const HttpRequest *request)
{
    return request->service->settings.server;
}

/* Enter the JSON object of the body, if there is one. */
static bool begin(const HttpRequest *request, Json *json, Problem *problem)
{
    JsonLimits most = {(uint32_t)request->limits->json_depth, request->limits->json_values, UINT64_MAX};
    *json = json_read(request->body, &most);
    if (json_object(json))
        return true;
    return json_failed(json) ? json_problem(json, parsing, problem)
                             : problem_set(problem, PROBLEM_INVALID, "the request's body is not a JSON object");
}

static bool end(Json *json, Problem *problem)
{
    if (problem->kind != PROBLEM_NONE)
        return false;
    return json_end(json) || json_problem(json, parsing, problem);
}

/* Copy the next value, a string, for the lifetime of the call. */
static bool keep_string(HttpRequest *request, Json *json, Slice *copy, Problem *problem)
{
    Buffer scratch = {0};
    Slice value;
    bool kept = json_string(json, &scratch, &value);
    if (!kept && !json_failed(json))
        problem_set(problem, PROBLEM_INVALID, "attempt to access JSON non-string as string");
    kept = kept && http_copy(request->call, value, copy, problem);
    buffer_free(&scratch);
    return kept;
}

/* ── log ──────────────────────────────────────────────────────────────────────────────────────────── */

static bool respond_log(HttpRequest *request, Problem *problem)
{
    Call *call = request->call;
    if (!response_begin(call, problem) || !log_settings_read(server_of(request), &call->reply, problem))
        return false;
    response_send(call, 200, TYPE_JSON, NULL, 0, 0);
    return true;
}

bool http_handle_log_read(HttpRequest *request, Problem *problem)
{
    return respond_log(request, problem);
}

static const char *const log_names[] = {
    "log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"};

/* Returns whether a setting is known. `name` receives its name from the table. */
static bool is_known(Slice key, const char *const *names, size_t count, Slice *name)
{
    for (size_t i = 0; i < count; i++)
        if (slice_is(key, names[i])) {
            *name = slice_of(names[i]);
            return true;
        }
    return false;
}

static bool read_log_change(HttpRequest *request, Json *json, LogChange *change, Problem *problem)
{
    switch (json_kind(json)) {
    case JSON_TRUE:
    case JSON_FALSE:
        change->type = PARAMETER_BOOL;
        return json_bool(json, &change->boolean);
    case JSON_NUMBER:
        change->type = PARAMETER_INT;
        return json_unsigned(json, &change->integer) || json_failed(json) ||
            problem_set(problem, PROBLEM_INVALID, "attempt to access JSON non-unsigned-integer as unsigned-integer");
    default:
        change->type = PARAMETER_STRING;
        return keep_string(request, json, &change->string, problem);
    }
}

bool http_handle_log_change(HttpRequest *request, Problem *problem)
{
    Json json;
    Buffer scratch = {0};
    Slice key;
    LogChange changes[MAX_CHANGES];
    size_t count = 0;
    if (!begin(request, &json, problem))
        return false;
    while (problem->kind == PROBLEM_NONE && json_member(&json, &scratch, &key)) {
        if (!is_known(key, log_names, sizeof log_names / sizeof *log_names, &changes[count].name))
            json_skip(&json);
        else if (count == MAX_CHANGES - 1)
            problem_set(problem, PROBLEM_TOO_LARGE, "the request has more settings than exist");
        else if (read_log_change(request, &json, &changes[count], problem))
            count++;
    }
    buffer_free(&scratch);
    return end(&json, problem) && log_settings_change(server_of(request), changes, count, problem) &&
        respond_log(request, problem);
}

/* ── traces ───────────────────────────────────────────────────────────────────────────────────────── */

static bool respond_trace(HttpRequest *request, Problem *problem)
{
    Call *call = request->call;
    if (request->service->settings.tracing == NULL)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "tracing is disabled in this server");
    if (!response_begin(call, problem) ||
        !trace_settings_read(
            request->service->settings.tracing, server_of(request), request->name, &call->reply, problem))
        return false;
    response_send(call, 200, TYPE_JSON, NULL, 0, 0);
    return true;
}

bool http_handle_trace_read(HttpRequest *request, Problem *problem)
{
    return respond_trace(request, problem);
}

static const char *const trace_names[] = {
    "trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"};

/* Read a value: null, a string, or for levels an array of strings. */
static bool read_trace_change(HttpRequest *request, Json *json, TraceChange *change, Problem *problem)
{
    Slice *values = call_memory(request->call, MAX_LEVELS * sizeof *values);
    if (values == NULL)
        return problem_no_memory(problem);
    change->values = values;
    change->count = 0;
    if (json_null(json))
        return true;
    if (json_kind(json) != JSON_ARRAY)
        return keep_string(request, json, &values[change->count++], problem);
    json_array(json);
    while (problem->kind == PROBLEM_NONE && json_element(json)) {
        if (change->count == MAX_LEVELS)
            return problem_set(problem, PROBLEM_INVALID, "a trace setting has too many values");
        keep_string(request, json, &values[change->count++], problem);
    }
    return problem->kind == PROBLEM_NONE;
}

bool http_handle_trace_change(HttpRequest *request, Problem *problem)
{
    Json json;
    Buffer scratch = {0};
    Slice key;
    TraceChange changes[MAX_CHANGES];
    size_t count = 0;
    if (!begin(request, &json, problem))
        return false;
    while (problem->kind == PROBLEM_NONE && json_member(&json, &scratch, &key)) {
        if (!is_known(key, trace_names, sizeof trace_names / sizeof *trace_names, &changes[count].name))
            json_skip(&json);
        else if (count == MAX_CHANGES - 1)
            problem_set(problem, PROBLEM_TOO_LARGE, "the request has more settings than exist");
        else if (read_trace_change(request, &json, &changes[count], problem))
            count++;
    }
    buffer_free(&scratch);
    if (!end(&json, problem))
        return false;
    Tracing *tracing = request->service->settings.tracing;
    if (tracing && !trace_settings_change(tracing, server_of(request), request->name, changes, count, problem))
        return false;
    return respond_trace(request, problem);
}
