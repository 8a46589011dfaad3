/* Requests to typed functions, and pages. The body goes to the model unparsed, as its only input; what the model responds
 * goes to the client unchanged. Errors are problem details (RFC 9457). pytriton/typed/model.py is the other end.
 */
#include "http/typed.h"

#include "common/json_writer.h"
#include "http/error_log.h"

#include <stdio.h>

#define BODY "body"

enum { HEADERS_ROOM = 1024 };

/* ── errors ───────────────────────────────────────────────────────────────────────────────────────── */

/* Returns the status of problem details that the model itself has written, "{"status":422,...}"; 0: it has not. */
static int own_status(const char *text)
{
    static const char start[] = "{\"status\":";
    if (strncmp(text, start, sizeof start - 1) != 0)
        return 0;
    const char *digits = text + sizeof start - 1;
    int status = 0;
    for (int i = 0; i < 3; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return 0;
        status = 10 * status + digits[i] - '0';
    }
    return status >= 400 && status <= 599 ? status : 0;
}

Slice typed_request_id(const char *text)
{
    static const char before[] = " [request id: ";
    const char *found = NULL;
    for (const char *at = strstr(text, before); at; at = strstr(at + 1, before))
        found = at + sizeof before - 1;
    size_t size = found ? strlen(found) : 0;
    return size > 1 && found[size - 1] == ']' ? (Slice){found, size - 1} : (Slice){NULL, 0};
}

int typed_put_problem(Buffer *text, const Problem *problem)
{
    const char *words = problem_text(problem);
    int status = own_status(words);
    if (status) {
        buffer_put_string(text, words);
        return status;
    }
    status = problem_status(problem->kind == PROBLEM_UNKNOWN ? PROBLEM_INTERNAL : problem->kind);
    buffer_put_string(text, "{\"status\":");
    buffer_put_unsigned(text, (uint64_t)status);
    buffer_put_string(text, ",\"title\":");
    json_put_sanitized(text, slice_of(http_status_reason(status)));
    if (status != 500) {
        buffer_put_string(text, ",\"detail\":");
        json_put_sanitized(text, slice_of(words));
    }
    Slice id = typed_request_id(words);
    if (id.start) {
        buffer_put_string(text, ",\"request_id\":");
        json_put_sanitized(text, id);
    }
    buffer_put_char(text, '}');
    return status;
}

/* ── responses ────────────────────────────────────────────────────────────────────────────────────── */

/* Returns the body in the model's response. */
static bool body_of(const CallResponse *response, Slice *body, Problem *problem)
{
    const ResponseOutput *output = response->outputs;
    uint32_t size;
    if (response->output_count != 1 || output->datatype != TYPE_BYTES || output->elements != 1 ||
        output->size < sizeof size)
        return problem_set(problem, PROBLEM_INTERNAL, "the model returned no body");
    memcpy(&size, output->bytes, sizeof size);
    *body = slice_after((Slice){output->bytes, output->size}, sizeof size);
    return size == body->size ||
        problem_set(problem, PROBLEM_INTERNAL, "the size of the body that the model returned is wrong");
}

/* Handle the answer. Any thread. */
static void on_response(Call *call, CallResponse *response)
{
    HttpCall *state = http_call(call);
    Problem problem = {0};
    Slice body;
    response = response_keep_first(state, response);
    if (response == NULL)
        return;
    if (response->problem.kind != PROBLEM_NONE) {
        problem_set(&problem, response->problem.kind, "%s", problem_text(&response->problem));
    } else if (body_of(response, &body, &problem) && response_begin(call, &problem)) {
        struct iovec part = {(char *)(uintptr_t)body.start, body.size};
        response_send(call, 200, state->typed_type, &part, 1, 0);
        return;
    }
    response_send_problem(call, &problem);
}

/* Write the data of an event; each line of it is a field of its own. */
static void put_data(Buffer *text, Slice data)
{
    size_t begin = 0;
    for (size_t i = 0; i <= data.size; i++) {
        if (i < data.size && data.start[i] != '\n' && data.start[i] != '\r')
            continue;
        buffer_put_string(text, begin ? "\ndata: " : "data: ");
        buffer_put_slice(text, (Slice){data.start + begin, i - begin});
        if (i + 1 < data.size && data.start[i] == '\r' && data.start[i + 1] == '\n')
            i++;
        begin = i + 1;
    }
}

/* Send one event. Returns false if the client has gone. */
static bool send_event(Call *call, const CallResponse *response)
{
    HttpCall *state = http_call(call);
    Buffer *text = &call->reply;
    Problem problem = {0};
    Slice body;
    buffer_clear(text);
    if (response->problem.kind != PROBLEM_NONE)
        problem_set(&problem, response->problem.kind, "%s", problem_text(&response->problem));
    else if (body_of(response, &body, &problem))
        put_data(text, body);
    if (problem.kind != PROBLEM_NONE) {
        buffer_put_string(text, "event: error\ndata: ");
        error_log_write(call, typed_put_problem(text, &problem), &problem);
        problem_clear(&problem);
    }
    buffer_put_string(text, "\n\n");
    if (text->failed)
        return false;
    return state->begun ? response_send_chunk(call, buffer_slice(text)) : response_open(call, 200, buffer_slice(text));
}

/* One response of a stream. Any thread. */
static void streamed(Call *call, CallResponse *response)
{
    HttpCall *state = http_call(call);
    bool final = response->final;
    bool failed = response->problem.kind != PROBLEM_NONE;
    if (failed && !state->begun && state->responses == 0 && !state->is_broken) {
        /* Nothing has been sent: the client gets a status. */
        state->responses = 1;
        state->is_refused = true;
        problem_clear(&state->refusal);
        problem_set(&state->refusal, response->problem.kind, "%s", problem_text(&response->problem));
    } else if (!state->is_broken && !state->is_refused && (failed || !response->empty) && !send_event(call, response)) {
        state->is_broken = true;
        call_cancel(call);
    }
    call_response_release(response);
    if (!final)
        return;
    if (state->is_refused) {
        response_send_problem(call, &state->refusal);
        return;
    }
    if (!state->begun)
        response_open(call, 200, SLICE(""));
    response_close(call);
}

/* ── requests ─────────────────────────────────────────────────────────────────────────────────────── */

static bool add_parameter(Call *call, const char *name, Slice value, Problem *problem)
{
    CallParameter parameter = {.type = PARAMETER_STRING, .string = value};
    return call_parameter(call, slice_of(name), &parameter, problem);
}

/* Make the body an element of BYTES: its size goes where the head ends, which nothing reads any more. */
static bool add_body(HttpRequest *request, Problem *problem)
{
    static const int64_t shape[] = {1, 1};
    Slice body = request->body;
    uint32_t size = (uint32_t)body.size;
    if (body.size > UINT32_MAX)
        return problem_set(problem, PROBLEM_TOO_LARGE, "the body has more than 4 GiB");
    char *start = (char *)(uintptr_t)body.start - sizeof size;
    memcpy(start, &size, sizeof size);
    return call_input(request->call, SLICE(BODY), SLICE("BYTES"), shape, 2, problem) &&
        call_input_data(request->call, start, sizeof size + body.size, problem) &&
        call_output(request->call, SLICE(BODY), problem);
}

static bool run(HttpRequest *request, const Route *route, Problem *problem)
{
    Call *call = request->call;
    HttpCall *state = http_call(call);
    Slice type = http_header(request->head, "content-type"), kept;
    if (!call_model(call, slice_of(route->model), SLICE(""), problem) ||
        !http_copy(call, (Slice){route->type, strlen(route->type) + 1}, &kept, problem))
        return false;
    state->typed_type = kept.start;
    if (http_header_repeats(request->head, "content-type"))
        return problem_set(problem, PROBLEM_INVALID, "Content-Type occurs more than once");
    return http_forward_headers(request, problem) && add_parameter(call, "route", slice_of(route->path), problem) &&
        (slice_is(type, TYPE_JSON) || add_parameter(call, "content_type", type.start ? type : SLICE(""), problem)) &&
        add_body(request, problem) && call_start(call, call->decoupled ? streamed : on_response, problem);
}

/* ── pages of other origins ───────────────────────────────────────────────────────────────────────── */

/* Add a line to the response's headers. They are short: the request's own are limited. */
static void add_header(HttpCall *state, Call *call, const char *name, Slice value)
{
    if (state->headers == NULL) {
        state->headers = call_memory(call, HEADERS_ROOM);
        if (state->headers == NULL)
            return;
        state->headers[0] = '\0';
    }
    size_t size = strlen(state->headers);
    int written = snprintf(state->headers + size, HEADERS_ROOM - size, "%s: %.*s\r\n", name, SLICE_ARGS(value));
    if (written < 0 || (size_t)written >= HEADERS_ROOM - size)
        state->headers[size] = '\0';
}

bool typed_allows_origin(HttpRequest *request, const Routes *routes)
{
    Slice origin = http_header(request->head, "origin");
    HttpCall *state = http_call(request->call);
    if (origin.start == NULL || !routes_allow_origin(routes, origin))
        return false;
    add_header(state, request->call, "Access-Control-Allow-Origin", origin);
    add_header(state, request->call, "Vary", SLICE("Origin"));
    return true;
}

/* The methods of a route, as in the header Allow. */
static const char *route_methods(const Route *route)
{
    return route->model == NULL ? "GET, HEAD" : route->takes_put ? "POST, PUT" : "POST";
}

static void answer_preflight(HttpRequest *request, const Route *route)
{
    HttpCall *state = http_call(request->call);
    Slice headers = http_header(request->head, "access-control-request-headers");
    add_header(state, request->call, "Access-Control-Allow-Methods", slice_of(route_methods(route)));
    if (headers.start && headers.size <= HEADERS_ROOM / 2)
        add_header(state, request->call, "Access-Control-Allow-Headers", headers);
    add_header(state, request->call, "Access-Control-Max-Age", SLICE("600"));
    response_send_text(request->call, 204, TYPE_TEXT, SLICE(""));
}

/* ── all of it ────────────────────────────────────────────────────────────────────────────────────── */

static void run_page(HttpRequest *request, const Route *route)
{
    HttpCall *state = http_call(request->call);
    if (route->policy)
        add_header(state, request->call, "Content-Security-Policy", slice_of(route->policy));
    add_header(state, request->call, "Cache-Control", SLICE("no-cache"));
    add_header(state, request->call, "X-Content-Type-Options", SLICE("nosniff"));
    response_send_text(request->call, 200, route->type, route->content);
}

void typed_run(HttpRequest *request, const Route *route, bool is_allowed_origin)
{
    Problem problem = {0};
    HttpMethod method = request->head->method;
    HttpCall *state = http_call(request->call);
    bool is_allowed = route->model ? method == HTTP_POST || (method == HTTP_PUT && route->takes_put)
                                   : method == HTTP_GET || method == HTTP_HEAD;
    if (method == HTTP_OPTIONS && is_allowed_origin) {
        answer_preflight(request, route);
        return;
    }
    if (!is_allowed) {
        state->allow = route_methods(route);
        problem_set(&problem, PROBLEM_METHOD, "Use %s", route->model ? "POST" : "GET");
    } else if (!request_is_allowed(request, route->model ? API_INFERENCE : API_METADATA, &problem)) {
        /* The problem says which header is missing. */
    } else if (route->model == NULL) {
        run_page(request, route);
        return;
    } else if (run(request, route, &problem) || request_wait_for_model(request->call, &problem)) {
        return;
    }
    response_send_problem(request->call, &problem);
}

/* POST /admin/routes: the whole table. */
bool http_handle_replace_routes(HttpRequest *request, Problem *problem)
{
    RouteTable *table = request->service->settings.route_table;
    if (table == NULL)
        return problem_set(problem, PROBLEM_UNSUPPORTED, "this process has no routes");
    if (!route_table_replace(table, request->body, problem))
        return false;
    response_send_text(request->call, 200, TYPE_JSON, SLICE(""));
    return true;
}
