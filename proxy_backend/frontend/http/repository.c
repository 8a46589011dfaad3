/* Endpoints for the model repository, and the dispatcher's private ones. */
#include "admin/repository.h"
#include "calls/sequences.h"

#include "http/request.h"
#include "json/reader.h"

#include <stdlib.h>

enum { MAX_PARAMETERS = 1024 };

static Server *server_of(Call *call)
{
    return http_call(call)->service->settings.server;
}

static const char parsing[] = "failed to parse the request JSON buffer";

/* Enter the JSON object of a body. Returns false for an empty body, which is allowed, or with a problem. */
static bool read_object(Slice body, const Limits *limits, Json *json, Problem *problem)
{
    if (body.size == 0)
        return false;
    JsonLimits most = {(uint32_t)limits->json_depth, limits->json_values, UINT64_MAX};
    *json = json_read(body, &most);
    if (json_object(json))
        return true;
    if (!json_failed(json))
        problem_set(problem, PROBLEM_INVALID, "the request's body is not a JSON object");
    else
        json_problem(json, parsing, problem);
    return false;
}

/* ── index ────────────────────────────────────────────────────────────────────────────────────────── */

static bool put_index(Call *call, Problem *problem)
{
    const HttpJob *job = &http_call(call)->job;
    return repository_index(server_of(call), job->repository, job->flag, &call->reply, problem);
}

bool http_handle_index(HttpRequest *request, Problem *problem)
{
    Json json;
    Buffer scratch = {0};
    Slice key;
    bool ready = false;
    if (read_object(request->body, request->limits, &json, problem)) {
        while (problem->kind == PROBLEM_NONE && json_member(&json, &scratch, &key)) {
            if (!slice_is(key, "ready"))
                json_skip(&json);
            else if (!json_bool(&json, &ready) && !json_failed(&json))
                problem_set(
                    problem, PROBLEM_INVALID, "Unable to parse 'ready': attempt to access JSON non-boolean as boolean");
        }
        if (problem->kind == PROBLEM_NONE && !json_end(&json))
            json_problem(&json, parsing, problem);
    }
    buffer_free(&scratch);
    http_call(request->call)->job.flag = ready;
    return problem->kind == PROBLEM_NONE && http_job(request, put_index, TYPE_JSON, problem);
}

/* ── load and unload ──────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    LoadParameter list[MAX_PARAMETERS];
    size_t count;
    bool dependents;
    Buffer scratch;
} Parameters;

static unsigned digit_of(char byte)
{
    return byte >= 'A' && byte <= 'Z' ? (unsigned)(byte - 'A')
        : byte >= 'a' && byte <= 'z'  ? (unsigned)(byte - 'a') + 26
        : byte >= '0' && byte <= '9'  ? (unsigned)(byte - '0') + 52
        : byte == '+'                 ? 62
        : byte == '/'                 ? 63
                                      : 64;
}

bool base64_decode(char *text, size_t size, size_t *decoded)
{
    uint32_t bits = 0, count = 0;
    *decoded = 0;
    while (size && text[size - 1] == '=')
        size--;
    for (size_t i = 0; i < size; i++) {
        unsigned digit = digit_of(text[i]);
        if (digit > 63)
            return false;
        bits = bits << 6 | digit;
        count += 6;
        if (count >= 8) {
            count -= 8;
            text[(*decoded)++] = (char)(bits >> count);
        }
    }
    return size % 4 != 1;
}

/* Copy a string to the call's memory. */
static bool copy_string(Call *call, Json *json, const char *key, Slice *copy, Problem *problem)
{
    Buffer text = {0};
    if (!json_string_to(json, &text)) {
        buffer_free(&text);
        return json_failed(json) ? false
                                 : problem_set(problem, PROBLEM_INVALID,
                                       "Unable to parse '%s': attempt to access JSON non-string as string", key);
    }
    bool kept = !text.failed && http_copy(call, buffer_slice(&text), copy, problem);
    buffer_free(&text);
    return kept || (problem->kind == PROBLEM_NONE && problem_no_memory(problem));
}

/* Read an entry of "parameters". */
static bool take_parameter(Call *call, Json *json, Slice key, Parameters *parameters, Problem *problem)
{
    if (slice_is(key, "unload_dependents"))
        return json_bool(json, &parameters->dependents) || json_failed(json) ||
            problem_set(problem, PROBLEM_INVALID,
                "Unable to parse 'unload_dependents': attempt to access JSON non-boolean as boolean");
    bool is_file = slice_starts(key, "file:");
    if (!is_file && !slice_is(key, "config"))
        return problem_set(problem, PROBLEM_INVALID,
            "a load request has no parameter '%.*s', only 'config' and 'file:PATH'",
            key.size < 200 ? (int)key.size : 200, key.start);
    if (parameters->count == MAX_PARAMETERS)
        return problem_set(problem, PROBLEM_TOO_LARGE, "a load request can have at most %d parameters", MAX_PARAMETERS);
    LoadParameter *parameter = &parameters->list[parameters->count];
    parameter->type = is_file ? PARAMETER_BYTES : PARAMETER_STRING;
    if (!http_copy(call, key, &parameter->name, problem) ||
        !copy_string(call, json, is_file ? "file:" : "config", &parameter->value, problem))
        return false;
    if (is_file &&
        !base64_decode((char *)(uintptr_t)parameter->value.start, parameter->value.size, &parameter->value.size))
        return problem_set(problem, PROBLEM_INVALID, "the content of '%.*s' is not base64",
            key.size < 200 ? (int)key.size : 200, key.start);
    parameters->count++;
    return true;
}

static bool take_parameters(Call *call, Json *json, Parameters *parameters, Problem *problem)
{
    Slice key;
    if (!json_object(json))
        return json_failed(json) ||
            problem_set(problem, PROBLEM_INVALID, "Unable to parse 'parameters': it is not a JSON object");
    while (json_member(json, &parameters->scratch, &key))
        if (!take_parameter(call, json, key, parameters, problem))
            return false;
    return true;
}

/* Read the body of a load or unload request. */
static bool read_parameters(Call *call, Parameters *parameters, Problem *problem)
{
    const HttpCall *state = http_call(call);
    Json json;
    Slice key;
    if (!read_object(state->job.body, connection_endpoint(state->connection)->limits, &json, problem))
        return problem->kind == PROBLEM_NONE;
    while (problem->kind == PROBLEM_NONE && json_member(&json, &parameters->scratch, &key)) {
        if (slice_is(key, "parameters"))
            take_parameters(call, &json, parameters, problem);
        else
            json_skip(&json);
    }
    if (problem->kind == PROBLEM_NONE && !json_end(&json))
        json_problem(&json, parsing, problem);
    return problem->kind == PROBLEM_NONE;
}

static bool run_change(Call *call, bool load, Problem *problem)
{
    const HttpJob *job = &http_call(call)->job;
    Parameters *parameters = calloc(1, sizeof *parameters);
    if (parameters == NULL)
        return problem_no_memory(problem);
    bool done = read_parameters(call, parameters, problem);
    if (done && load)
        done =
            repository_load(server_of(call), job->repository, job->name, parameters->list, parameters->count, problem);
    else if (done)
        done = repository_unload(server_of(call), job->repository, job->name, parameters->dependents, problem);
    buffer_free(&parameters->scratch);
    free(parameters);
    return done;
}

static bool run_load(Call *call, Problem *problem)
{
    return run_change(call, true, problem);
}

static bool run_unload(Call *call, Problem *problem)
{
    return run_change(call, false, problem);
}

bool http_handle_load(HttpRequest *request, Problem *problem)
{
    return http_job(request, run_load, TYPE_JSON, problem);
}

bool http_handle_unload(HttpRequest *request, Problem *problem)
{
    return http_job(request, run_unload, TYPE_JSON, problem);
}

/* ── the dispatcher's ─────────────────────────────────────────────────────────────────────────────── */

static const ServerControl *control_of(Call *call)
{
    return http_call(call)->service->settings.control;
}

/* Run a job for the dispatcher. */
static bool control_job(HttpRequest *request, bool (*work)(Call *call, Problem *problem), Problem *problem)
{
    if (request->service->settings.control == NULL)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "this server does not accept this request");
    return http_job(request, work, TYPE_JSON, problem);
}

/* POST /admin/drain: end the process as on SIGTERM. */
bool http_handle_drain(HttpRequest *request, Problem *problem)
{
    const ServerControl *control = request->service->settings.control;
    if (control == NULL)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "this server does not accept shutdown requests");
    response_send_text(request->call, 200, TYPE_JSON, SLICE(""));
    control->end(control->user);
    return true;
}

/* Read a body {"KEY": true} or {"KEY": false}. */
static bool read_flag(Slice body, const Limits *limits, const char *name, bool *flag, Problem *problem)
{
    Json json;
    Buffer scratch = {0};
    Slice key;
    bool said = false;
    if (read_object(body, limits, &json, problem)) {
        while (json_member(&json, &scratch, &key))
            if (slice_is(key, name) && json_bool(&json, flag))
                said = true;
            else if (!json_skip(&json))
                break;
        if (!json_end(&json))
            json_problem(&json, parsing, problem);
    }
    buffer_free(&scratch);
    if (problem->kind != PROBLEM_NONE)
        return false;
    return said ||
        problem_set(
            problem, PROBLEM_INVALID, "the request's body is not {\"%s\": true} or {\"%s\": false}", name, name);
}

static bool run_accept(Call *call, Problem *problem)
{
    const ServerControl *control = control_of(call);
    bool accept = true;
    const Limits *limits = connection_endpoint(http_call(call)->connection)->limits;
    return read_flag(http_call(call)->job.body, limits, "accept", &accept, problem) &&
        control->accept(control->user, accept, problem);
}

/* POST /admin/accept {"accept": false}: start or stop accepting clients' connections. Answered when that has been
 * done.
 */
bool http_handle_accept(HttpRequest *request, Problem *problem)
{
    return control_job(request, run_accept, problem);
}

static bool run_retire(Call *call, Problem *problem)
{
    const ServerControl *control = control_of(call);
    Json json;
    Buffer scratch = {0}, successor = {0};
    Slice key;
    bool force = false;
    if (read_object(
            http_call(call)->job.body, connection_endpoint(http_call(call)->connection)->limits, &json, problem)) {
        while (json_member(&json, &scratch, &key))
            if (!(slice_is(key, "successor")     ? json_string_to(&json, &successor)
                        : slice_is(key, "force") ? json_bool(&json, &force)
                                                 : json_skip(&json)))
                break;
        if (!json_end(&json))
            json_problem(&json, parsing, problem);
    }
    bool done = problem->kind == PROBLEM_NONE && !successor.failed &&
        control->retire(control->user, successor.size ? buffer_string(&successor) : NULL, force, problem);
    buffer_free(&scratch);
    buffer_free(&successor);
    return done || (problem->kind == PROBLEM_NONE && problem_no_memory(problem));
}

/* POST /admin/retire {"successor": "/path", "force": false}: hand over connections to the process that listens there,
 * and end when none is left.
 */
bool http_handle_retire(HttpRequest *request, Problem *problem)
{
    return control_job(request, run_retire, problem);
}

static bool run_leave(Call *call, Problem *problem)
{
    const ServerControl *control = control_of(call);
    (void)problem;
    control->leave(control->user);
    return true;
}

/* POST /admin/leave: stop accepting connections, and end open ones gracefully. Answered when all have ended, or after
 * the exit timeout.
 */
bool http_handle_leave(HttpRequest *request, Problem *problem)
{
    return control_job(request, run_leave, problem);
}

/* GET /admin/work: report the clients' work in progress. */
bool http_handle_work(HttpRequest *request, Problem *problem)
{
    Buffer *text = &request->call->reply;
    if (!response_begin(request->call, problem))
        return false;
    buffer_format(text, "{\"connections\":%llu,\"requests\":%llu,\"sequences\":%llu}",
        (unsigned long long)connections_count(), (unsigned long long)calls_running(),
        (unsigned long long)sequences_count());
    response_send(request->call, 200, TYPE_JSON, NULL, 0, 0);
    return true;
}

/* POST /admin/forget {"model": "m"}: the dispatcher no longer keeps the model. Requests that wait for it are answered.
 */
bool http_handle_settle(HttpRequest *request, Problem *problem)
{
    Json json;
    Buffer scratch = {0}, model = {0};
    Slice key;
    if (read_object(request->body, request->limits, &json, problem)) {
        while (json_member(&json, &scratch, &key))
            if (!(slice_is(key, "model") ? json_string_to(&json, &model) : json_skip(&json)))
                break;
        if (!json_end(&json))
            json_problem(&json, parsing, problem);
    }
    pending_models_settle(request->service->settings.server->pending_models, buffer_slice(&model));
    buffer_free(&scratch);
    buffer_free(&model);
    if (problem->kind != PROBLEM_NONE)
        return false;
    response_send_text(request->call, 200, TYPE_JSON, SLICE(""));
    return true;
}

/* POST /admin/ready {"ready": false}: set whether the server may report that it is ready. */
bool http_handle_set_ready(HttpRequest *request, Problem *problem)
{
    bool ready = true;
    if (!read_flag(request->body, request->limits, "ready", &ready, problem))
        return false;
    server_force_unready(request->service->settings.server, !ready);
    response_send_text(request->call, 200, TYPE_JSON, SLICE(""));
    return true;
}
