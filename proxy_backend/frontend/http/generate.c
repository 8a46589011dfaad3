/* The endpoints generate and generate_stream. The request is a JSON object. Its members that are named like inputs of
 * the model are inputs, all others are parameters. An answer is an object of outputs. A stream consists of Server-Sent
 * Events with one answer each.
 */
#include "admin/information.h"

#include "http/request.h"
#include "http/bodies.h"
#include "common/json_writer.h"

enum { MAX_INPUTS = 256, MAX_DIMS = 32 };

static const char parsing[] = "failed to parse the request JSON buffer";

/* An input of the model, from its metadata. */
typedef struct {
    Buffer name, datatype;
    int64_t shape[MAX_DIMS];
    size_t dims;
} ModelInput;

typedef struct {
    ModelInput *list; /* in call_memory */
    size_t count;
} ModelInputs;

/* ── the model's inputs ───────────────────────────────────────────────────────────────────────────── */

static void read_shape(Json *json, ModelInput *input)
{
    int64_t dim;
    json_array(json);
    while (json_element(json))
        if (json_signed(json, &dim) && input->dims < MAX_DIMS)
            input->shape[input->dims++] = dim;
}

static void read_input(Json *json, ModelInput *input)
{
    Buffer scratch = {0};
    Slice key;
    json_object(json);
    while (json_member(json, &scratch, &key))
        if (slice_is(key, "name"))
            json_string_to(json, &input->name);
        else if (slice_is(key, "datatype"))
            json_string_to(json, &input->datatype);
        else if (slice_is(key, "shape"))
            read_shape(json, input);
        else
            json_skip(json);
    buffer_free(&scratch);
}

/* Read the model's inputs from the core's JSON. */
static bool read_inputs(Call *call, Slice metadata, ModelInputs *inputs, Problem *problem)
{
    JsonLimits limits = {64, 1 << 20, 1 << 20};
    Json json = json_read(metadata, &limits);
    Buffer scratch = {0};
    Slice key;
    inputs->list = call_memory(call, MAX_INPUTS * sizeof *inputs->list);
    if (inputs->list == NULL)
        return problem_no_memory(problem);
    json_object(&json);
    while (json_member(&json, &scratch, &key)) {
        if (!slice_is(key, "inputs") || !json_array(&json)) {
            json_skip(&json);
            continue;
        }
        while (json_element(&json) && inputs->count < MAX_INPUTS) {
            ModelInput *input = &inputs->list[inputs->count++];
            *input = (ModelInput){0};
            read_input(&json, input);
        }
    }
    buffer_free(&scratch);
    return json_end(&json) || json_problem(&json, "the model's metadata", problem);
}

static void free_inputs(ModelInputs *inputs)
{
    for (size_t i = 0; i < inputs->count; i++) {
        buffer_free(&inputs->list[i].name);
        buffer_free(&inputs->list[i].datatype);
    }
}

static ModelInput *input_named(const ModelInputs *inputs, Slice name)
{
    for (size_t i = 0; i < inputs->count; i++)
        if (slice_equals(buffer_slice(&inputs->list[i].name), name))
            return &inputs->list[i];
    return NULL;
}

/* ── the request ──────────────────────────────────────────────────────────────────────────────────── */

/* Choose the variable dimensions of a model's input: the last one fits the given elements, the others become 1. */
static bool fit_shape(const ModelInput *input, uint64_t elements, int64_t *shape)
{
    uint64_t left = elements;
    ssize_t open = -1;
    for (size_t i = 0; i < input->dims; i++) {
        shape[i] = input->shape[i];
        if (shape[i] < 0) {
            shape[i] = 1;
            open = (ssize_t)i;
        } else if (shape[i] == 0 || left % (uint64_t)shape[i]) {
            return elements == 0 && shape[i] == 0;
        } else {
            left /= (uint64_t)shape[i];
        }
    }
    if (open >= 0)
        shape[open] = (int64_t)left;
    return open >= 0 || left == 1;
}

static bool take_input(Call *call, const ModelInput *input, Json *json, Problem *problem)
{
    int64_t shape[MAX_DIMS];
    if (!fit_shape(input, tensor_count(*json), shape))
        return problem_set(problem, PROBLEM_INVALID,
            "The schema can not convert input '%.*s' to tensor with proper shape",
            SLICE_ARGS(buffer_slice(&input->name)));
    const CallTensor *tensor =
        call_input(call, buffer_slice(&input->name), buffer_slice(&input->datatype), shape, input->dims, problem);
    return tensor && tensor_read(call, tensor, json, true, problem);
}

static bool take_parameters(Call *call, Json *json, Problem *problem)
{
    Buffer scratch = {0};
    Slice key;
    if (!json_object(json))
        return json_failed(json)
            ? false
            : problem_set(problem, PROBLEM_INVALID,
                  "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object "
                  "as object");
    while (problem->kind == PROBLEM_NONE && json_member(json, &scratch, &key))
        parameter_read(call, key, json, problem);
    buffer_free(&scratch);
    return problem->kind == PROBLEM_NONE;
}

static bool take_member(Call *call, const ModelInputs *inputs, Slice key, Json *json, Problem *problem)
{
    const ModelInput *input = input_named(inputs, key);
    if (input)
        return take_input(call, input, json, problem);
    if (slice_is(key, "parameters"))
        return take_parameters(call, json, problem);
    if (!slice_is(key, "id"))
        return parameter_read(call, key, json, problem);
    Buffer scratch = {0};
    Slice id;
    bool taken = json_string(json, &scratch, &id) ? call_id(call, id, problem)
        : json_failed(json)
        ? false
        : problem_set(problem, PROBLEM_INVALID, "Unable to parse 'id': attempt to access JSON non-string as string");
    buffer_free(&scratch);
    return taken;
}

static bool take_body(Call *call, const ModelInputs *inputs, Slice body, Problem *problem)
{
    const Limits *limits = connection_endpoint(http_call(call)->connection)->limits;
    JsonLimits most = {(uint32_t)limits->json_depth, limits->json_values, UINT64_MAX};
    Json json = json_read(body, &most);
    Buffer scratch = {0};
    Slice key;
    if (!json_object(&json) && !json_failed(&json))
        return problem_set(problem, PROBLEM_INVALID, "attempt to get members for non-object");
    while (problem->kind == PROBLEM_NONE && json_member(&json, &scratch, &key))
        take_member(call, inputs, key, &json, problem);
    buffer_free(&scratch);
    if (problem->kind == PROBLEM_NONE && !json_end(&json)) {
        json_count_refusal(&json);
        json_problem(&json, parsing, problem);
    }
    return problem->kind == PROBLEM_NONE;
}

/* ── answers ──────────────────────────────────────────────────────────────────────────────────────── */

static bool put_response(Buffer *text, const CallResponse *response, Problem *problem)
{
    response_head_write(text, response);
    if (response->parameter_count) {
        buffer_put_char(text, ',');
        parameters_write(text, response);
    }
    for (size_t i = 0; i < response->output_count; i++) {
        const ResponseOutput *output = &response->outputs[i];
        buffer_put_char(text, ',');
        json_put_sanitized(text, slice_of(output->name));
        buffer_put_char(text, ':');
        if (output->elements != 1)
            buffer_put_char(text, '[');
        if (!tensor_write(output, text, problem))
            return false;
        if (output->elements != 1)
            buffer_put_char(text, ']');
    }
    buffer_put_char(text, '}');
    return true;
}

/* Handle the only answer. A model that gives several is refused. Any thread. */
static void on_response(Call *call, CallResponse *response)
{
    HttpCall *state = http_call(call);
    Problem problem = {0};
    response = response_keep_first(state, response);
    if (response == NULL)
        return;
    if (state->responses != 1)
        problem_set(&problem, PROBLEM_INVALID,
            "generate expects model to produce exactly 1 response, use generate stream for model that generates "
            "various number "
            "of responses");
    else if (response->problem.kind != PROBLEM_NONE)
        problem_set(&problem, response->problem.kind, "%s", problem_text(&response->problem));
    else if (response_begin(call, &problem) && put_response(&call->reply, response, &problem)) {
        response_send(call, 200, TYPE_JSON, NULL, 0, 0);
        return;
    }
    response_send_problem(call, &problem);
}

/* Get the events in an answer of a model behind the OpenAI API. They are in a text "s..." and are sent unchanged
 * (pytriton/openai/response_writer.py).
 */
static bool events_of(const CallResponse *response, Slice *events)
{
    const ResponseOutput *output = response->outputs;
    uint32_t size;
    if (response->problem.kind != PROBLEM_NONE || response->output_count != 1 || output->datatype != TYPE_BYTES ||
        output->elements != 1 || output->in_region || output->size <= sizeof size ||
        strcmp(output->name, "text_output") != 0)
        return false;
    memcpy(&size, output->bytes, sizeof size);
    *events = slice_after((Slice){output->bytes, output->size}, sizeof size);
    if (size != events->size || events->start[0] != 's')
        return false;
    *events = slice_after(*events, 1);
    return true;
}

/* Send a piece of the body, the first one together with the head: each message wakes the client. */
static bool send_piece(Call *call, Slice piece)
{
    const HttpCall *state = http_call(call);
    return state->begun ? response_send_chunk(call, piece) : response_open(call, state->status, piece);
}

/* Send one event. Returns false if the client is gone. */
static bool send_event(Call *call, const CallResponse *response)
{
    HttpCall *state = http_call(call);
    Slice events;
    if (state->relay && events_of(response, &events) && relay_accept_events(state->relay, events))
        return true;
    Problem problem = {0};
    Buffer *text = &call->reply;
    buffer_clear(text);
    buffer_put_string(text, "data: ");
    size_t begin = text->size;
    bool good = response->problem.kind == PROBLEM_NONE && put_response(text, response, &problem);
    if (!good) {
        const Problem *wrong = response->problem.kind == PROBLEM_NONE ? &problem : &response->problem;
        problem.kind = wrong->kind;
        text->size = begin;
        buffer_put_string(text, "{\"error\":");
        json_put_sanitized(text, slice_of(problem_text(wrong)));
        buffer_put_char(text, '}');
    }
    buffer_put_string(text, "\n\n");
    int status = good ? 200 : problem_status(problem.kind);
    problem_clear(&problem);
    if (text->failed)
        return false;
    state->status = status;
    return state->relay ? relay_send_to_requester(state->relay, buffer_slice(text))
                        : send_piece(call, buffer_slice(text));
}

/* Handle one answer of a stream. Any thread. */
static void on_stream_response(Call *call, CallResponse *response)
{
    HttpCall *state = http_call(call);
    bool final = response->final;
    if (!state->is_broken && (!response->empty || response->problem.kind != PROBLEM_NONE) &&
        !send_event(call, response)) {
        state->is_broken = true;
        call_cancel(call);
    }
    call_response_release(response);
    if (!final)
        return;
    if (!state->begun)
        response_open(call, 200, SLICE(""));
    if (state->relay == NULL || relay_end(state->relay))
        response_close(call);
}

/* ── running ──────────────────────────────────────────────────────────────────────────────────────── */

/* Run as a job, because reading metadata may block while models are being loaded. */
static bool run_generate(Call *call, Problem *problem)
{
    HttpCall *state = http_call(call);
    ModelInputs inputs = {0};
    Buffer metadata = {0};
    bool good =
        model_information(state->service->settings.server, state->job.name, state->job.version, &metadata, problem) &&
        read_inputs(call, buffer_slice(&metadata), &inputs, problem) &&
        take_body(call, &inputs, state->job.body, problem);
    free_inputs(&inputs);
    buffer_free(&metadata);
    return good && call_start(call, state->job.flag ? on_stream_response : on_response, problem);
}

static bool send_to_requester(void *call, Slice piece)
{
    return send_piece(call, piece);
}

static void cancel(void *call)
{
    call_cancel(call);
}

static void end_response(void *call)
{
    response_close(call);
}

/* Returns whether to relay the events to a client whose connection will be handed over: the request asks for this, and
 * it is possible.
 */
static bool may_relay(const HttpRequest *request, uint64_t *pulse_ms)
{
    const HttpCall *state = http_call(request->call);
    Slice asked = http_header(request->head, RELAY_HEADER);
    return asked.start && !state->is_old && connection_endpoint(state->connection)->relays &&
        slice_unsigned(asked, pulse_ms);
}

/* Answer a relayed request without a thread that looks up metadata. Relayed requests are for models behind the OpenAI
 * API, which have this input.
 */
static bool start_relayed(HttpRequest *request, uint64_t pulse_ms, Problem *problem)
{
    static const RelayOwner owner = {send_to_requester, cancel, end_response};
    static ModelInput text = {
        .name = {.data = "request", .size = 7}, .datatype = {.data = "BYTES", .size = 5}, .shape = {1}, .dims = 1};
    static const ModelInputs inputs = {&text, 1};
    if (!take_body(request->call, &inputs, request->body, problem))
        return false;
    Relay *relay = relay_new(&owner, request->call, pulse_ms);
    if (relay == NULL)
        return problem_no_memory(problem);
    http_connection_set_relay(request->call, relay);
    if (call_start(request->call, on_stream_response, problem))
        return true;
    /* The next request may follow the refusal: the loop must not read it as a message to the relay. */
    relay_end(relay);
    http_connection_set_relay(request->call, NULL);
    relay_unref(relay);
    return false;
}

static bool start(HttpRequest *request, bool streams, Problem *problem)
{
    if (!call_model(request->call, request->name, request->version, problem) || !http_forward_headers(request, problem))
        return false;
    uint64_t pulse_ms;
    if (streams && may_relay(request, &pulse_ms))
        return start_relayed(request, pulse_ms, problem);
    HttpJob *job = &http_call(request->call)->job;
    job->flag = streams;
    job->responds_itself = true;
    return http_job(request, run_generate, TYPE_JSON, problem);
}

bool http_handle_generate(HttpRequest *request, Problem *problem)
{
    return start(request, false, problem);
}

bool http_handle_generate_stream(HttpRequest *request, Problem *problem)
{
    return start(request, true, problem);
}
