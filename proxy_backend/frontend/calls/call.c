#include "calls/call.h"

#include "common/utf8.h"
#include "calls/call_internal.h"
#include "net/limits.h"

#include <stdio.h>
#include <stdlib.h>

enum { FIRST_TENSORS = 4 };

Call *call_ref(Call *call)
{
    __atomic_add_fetch(&call_state(call)->refs, 1, __ATOMIC_RELAXED);
    return call;
}

void call_unref(Call *call)
{
    if (__atomic_sub_fetch(&call_state(call)->refs, 1, __ATOMIC_ACQ_REL) == 0)
        calls_release(call_state(call));
}

void *call_memory(Call *call, size_t size)
{
    return arena_allocate(&call_state(call)->memory, size);
}

const char *call_state_copy(CallState *state, Slice text, const char *what, Problem *problem)
{
    if (!utf8_is_valid(text) || (text.size && memchr(text.start, '\0', text.size))) {
        problem_set(problem, PROBLEM_INVALID, "%s is not valid UTF-8, or contains a NUL", what);
        return NULL;
    }
    char *copy = arena_allocate(&state->memory, text.size + 1);
    if (copy == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    if (text.size)
        memcpy(copy, text.start, text.size);
    copy[text.size] = '\0';
    return copy;
}

const char *call_state_id(const CallState *state)
{
    return state->id && *state->id ? state->id : *state->header_id ? state->header_id : "<id_unknown>";
}

CallTensor *call_state_add_tensor(CallTensor **tensors, size_t *count, size_t *room, const char *name)
{
    if (*count == *room) {
        size_t more = *room ? *room * 2 : FIRST_TENSORS;
        CallTensor *grown = realloc(*tensors, more * sizeof *grown);
        if (grown == NULL)
            return NULL;
        *tensors = grown;
        *room = more;
    }
    CallTensor *added = &(*tensors)[(*count)++];
    *added = (CallTensor){.name = name};
    return added;
}

Server *call_server(Call *call)
{
    return calls_settings_of(call_state(call)->calls)->server;
}

bool call_model(Call *call, Slice model, Slice version, Problem *problem)
{
    CallState *state = call_state(call);
    Server *server = call_server(call);
    ServerName name;
    int64_t number;
    uint32_t flags = 0;
    if (!server_name(model, "model name", &name, problem) || !server_version(version, &number, problem))
        return false;
    size_t left = pending_models_left(server->pending_models);
    if (!api_succeeded(
            triton.ServerModelTransactionProperties(server->server, name.text, number, &flags, NULL), problem)) {
        pending_models_request(server->pending_models, model, left, problem);
        return false;
    }
    call->decoupled = (flags & ANSWERS_MANY_TIMES) != 0;
    state->model = call_state_copy(state, model, "the model name", problem);
    ResponseCache *cache = calls_settings_of(state->calls)->cache;
    if (cache && state->model && !call->decoupled)
        response_cache_begin(cache, state->model, number, &state->key);
    return state->model &&
        api_succeeded(triton.InferenceRequestNew(&state->request, server->server, state->model, number), problem);
}

bool call_wait_for_model(Call *call, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then)
{
    call_ref(call);
    if (pending_models_wait(call_server(call)->pending_models, problem, waiter, then))
        return true;
    call_unref(call);
    return false;
}

bool call_id(Call *call, Slice id, Problem *problem)
{
    CallState *state = call_state(call);
    state->id = call_state_copy(state, id, "the request's id", problem);
    return state->id && api_succeeded(triton.InferenceRequestSetId(state->request, state->id), problem);
}

void call_origin_header(Call *call, Slice name, Slice value)
{
    CallState *state = call_state(call);
    char *to;
    size_t room;
    if (slice_is_nocase(name, "traceparent"))
        to = state->trace_parent, room = sizeof state->trace_parent;
    else if (slice_is_nocase(name, "tracestate"))
        to = state->trace_state, room = sizeof state->trace_state;
    else if (slice_is_nocase(name, "x-request-id"))
        to = state->header_id, room = sizeof state->header_id;
    else
        return;
    /* Ignore values that are longer than the standard allows. */
    if (value.size == 0 || value.size >= room || !utf8_is_valid(value) || memchr(value.start, 0, value.size))
        return;
    memcpy(to, value.start, value.size);
    to[value.size] = '\0';
}

/* Returns the trace id in a traceparent, "version-trace-span-flags". */
static Slice trace_of(Slice parent)
{
    Slice version, trace, span;
    bool whole = slice_split(&parent, '-', &version) && slice_split(&parent, '-', &trace) &&
        slice_split(&parent, '-', &span) && parent.start;
    return whole ? trace : (Slice){0};
}

bool call_state_use_header_id(CallState *state, Problem *problem)
{
    if (state->id && *state->id)
        return true;
    if (!*state->header_id) {
        Slice trace = trace_of(slice_of(state->trace_parent));
        if (trace.size)
            memcpy(state->header_id, trace.start, trace.size); /* The buffer has room for a whole trace_parent. */
        state->header_id[trace.size] = '\0';
    }
    state->id_from_header = *state->header_id;
    return !state->id_from_header ||
        api_succeeded(triton.InferenceRequestSetId(state->request, state->header_id), problem);
}

/* ── parameters ────────────────────────────────────────────────────────────────────────────────── */

/* The types of the parameters that Triton itself uses, for error texts. */
static const char *const type_names[] = {[PARAMETER_STRING] = "a string",
    [PARAMETER_INT] = "a whole number",
    [PARAMETER_BOOL] = "a boolean",
    [PARAMETER_DOUBLE] = "a double"};

static bool set_wrong_type(const char *name, const CallParameter *value, const char *wanted, Problem *problem)
{
    bool is_core = value->type >= 0 && (size_t)value->type < sizeof type_names / sizeof *type_names;
    return problem_set(problem, PROBLEM_INVALID, "parameter '%s' is %s, but must be %s", name,
        is_core ? type_names[value->type] : "a large number", wanted);
}

static bool take_sequence_id(CallState *state, const CallParameter *value, Problem *problem)
{
    state->key.used = false; /* Do not cache: the answer depends on earlier requests. */
    if (value->type == PARAMETER_INT || value->type == PARAMETER_UNSIGNED) {
        uint64_t id = value->type == PARAMETER_INT ? (uint64_t)value->integer : value->natural;
        char digits[24];
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)id);
        state->sequence = id ? call_state_copy(state, slice_of(digits), "the sequence_id", problem) : NULL;
        if (id && state->sequence == NULL)
            return false;
        return api_succeeded(triton.InferenceRequestSetCorrelationId(state->request, id), problem);
    }
    if (value->type != PARAMETER_STRING)
        return set_wrong_type("sequence_id", value, "a whole number or a string", problem);
    const char *id = call_state_copy(state, value->string, "the sequence_id", problem);
    state->sequence = id && *id ? id : NULL;
    return id && api_succeeded(triton.InferenceRequestSetCorrelationIdString(state->request, id), problem);
}

static bool take_sequence_flag(
    CallState *state, const char *name, uint32_t flag, const CallParameter *value, Problem *problem)
{
    if (value->type != PARAMETER_BOOL)
        return set_wrong_type(name, value, "a boolean", problem);
    state->key.used = false;
    state->sequence_flags = value->boolean ? state->sequence_flags | flag : state->sequence_flags & ~flag;
    return true;
}

static bool read_natural(const char *name, const CallParameter *value, uint64_t *natural, Problem *problem)
{
    if (value->type != PARAMETER_UNSIGNED && (value->type != PARAMETER_INT || value->integer < 0))
        return set_wrong_type(name, value, "a whole number that is not negative", problem);
    *natural = value->type == PARAMETER_INT ? (uint64_t)value->integer : value->natural;
    return true;
}

static bool take_priority(CallState *state, const CallParameter *value, Problem *problem)
{
    uint64_t priority = 0;
    return read_natural("priority", value, &priority, problem) &&
        api_succeeded(triton.InferenceRequestSetPriorityUInt64(state->request, priority), problem);
}

static bool take_timeout(CallState *state, const CallParameter *value, Problem *problem)
{
    uint64_t timeout = 0;
    return read_natural("timeout", value, &timeout, problem) &&
        api_succeeded(triton.InferenceRequestSetTimeoutMicroseconds(state->request, timeout), problem);
}

/* Pass a parameter to the model. */
static bool forward_parameter(CallState *state, const char *name, const CallParameter *value, Problem *problem)
{
    const char *string;
    call_state_key_name(state, KEY_PARAMETER, name);
    call_state_key(state, &value->type, sizeof value->type);
    switch (value->type) {
    case PARAMETER_STRING:
        string = call_state_copy(state, value->string, "the value of a parameter", problem);
        if (string)
            call_state_key_name(state, KEY_PARAMETER, string);
        return string &&
            api_succeeded(triton.InferenceRequestSetStringParameter(state->request, name, string), problem);
    case PARAMETER_INT:
        call_state_key(state, &value->integer, sizeof value->integer);
        return api_succeeded(triton.InferenceRequestSetIntParameter(state->request, name, value->integer), problem);
    case PARAMETER_BOOL:
        call_state_key(state, &value->boolean, sizeof value->boolean);
        return api_succeeded(triton.InferenceRequestSetBoolParameter(state->request, name, value->boolean), problem);
    case PARAMETER_UNSIGNED:
        call_state_key(state, &value->natural, sizeof value->natural);
        return api_succeeded(
            triton.InferenceRequestSetDoubleParameter(state->request, name, (double)value->natural), problem);
    case PARAMETER_DOUBLE:
        call_state_key(state, &value->number, sizeof value->number);
        return api_succeeded(triton.InferenceRequestSetDoubleParameter(state->request, name, value->number), problem);
    default:
        return problem_set(problem, PROBLEM_INVALID, "parameter '%s' has an unknown type", name);
    }
}

static bool one_more(CallState *state, Problem *problem)
{
    uint64_t most = calls_settings_of(state->calls)->inputs;
    if (state->parameter_count++ < most)
        return true;
    refusals_count(REFUSED_INPUTS);
    return problem_set(
        problem, PROBLEM_TOO_LARGE, "the request has more than %llu parameters", (unsigned long long)most);
}

bool call_parameter(Call *call, Slice name, const CallParameter *value, Problem *problem)
{
    CallState *state = call_state(call);
    if (slice_is(name, "sequence_id"))
        return take_sequence_id(state, value, problem);
    if (slice_is(name, "sequence_start"))
        return take_sequence_flag(state, "sequence_start", SEQUENCE_START, value, problem);
    if (slice_is(name, "sequence_end"))
        return take_sequence_flag(state, "sequence_end", SEQUENCE_END, value, problem);
    if (slice_is(name, "priority"))
        return take_priority(state, value, problem);
    if (slice_is(name, "timeout"))
        return take_timeout(state, value, problem);
    if (slice_starts(name, "triton_"))
        return problem_set(problem, PROBLEM_INVALID,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.");
    const char *copy =
        one_more(state, problem) ? call_state_copy(state, name, "the name of a parameter", problem) : NULL;
    return copy && forward_parameter(state, copy, value, problem);
}

static bool is_reserved(Slice name)
{
    return slice_starts_nocase(name, "sequence_") || slice_starts_nocase(name, "triton_") ||
        slice_is_nocase(name, "priority") || slice_is_nocase(name, "timeout");
}

bool call_header(Call *call, Slice name, Slice value, Problem *problem)
{
    CallState *state = call_state(call);
    if (is_reserved(name))
        return problem_set(problem, PROBLEM_INVALID,
            "header '%.*s' cannot be forwarded: Triton itself uses a parameter with this name. Change "
            "header-forward-pattern so that it does not match, or do not send the header",
            SLICE_ARGS(name));
    const char *copy = one_more(state, problem) ? call_state_copy(state, name, "the name of a header", problem) : NULL;
    CallParameter parameter = {.type = PARAMETER_STRING, .string = value};
    return copy && forward_parameter(state, copy, &parameter, problem);
}

/* ── outputs ───────────────────────────────────────────────────────────────────────────────────── */

CallTensor *call_output(Call *call, Slice name, Problem *problem)
{
    CallState *state = call_state(call);
    uint64_t most = calls_settings_of(state->calls)->inputs;
    if (call->output_count >= most) {
        refusals_count(REFUSED_INPUTS);
        problem_set(
            problem, PROBLEM_TOO_LARGE, "the request asks for more than %llu outputs", (unsigned long long)most);
        return NULL;
    }
    const char *copy = call_state_copy(state, name, "the name of an output", problem);
    if (copy == NULL || !api_succeeded(triton.InferenceRequestAddRequestedOutput(state->request, copy), problem))
        return NULL;
    CallTensor *output = call_state_add_tensor(&call->outputs, &call->output_count, &state->output_room, copy);
    if (output == NULL)
        problem_no_memory(problem);
    call_state_key_name(state, KEY_OUTPUT, copy);
    return output;
}

bool call_output_classes(Call *call, CallTensor *output, int64_t classes, Problem *problem)
{
    call_state(call)->key.used = false;
    if (output->region)
        return problem_set(
            problem, PROBLEM_INVALID, "shared memory and classification cannot be combined: output '%s'", output->name);
    if (classes < 0 || classes > INT32_MAX)
        return problem_set(
            problem, PROBLEM_INVALID, "output '%s' cannot have %lld classes", output->name, (long long)classes);
    output->classes = (uint32_t)classes;
    return true;
}

bool call_output_region(Call *call, CallTensor *output, Slice region, uint64_t offset, uint64_t size, Problem *problem)
{
    SharedMemory *all = calls_settings_of(call_state(call)->calls)->shared_memory;
    if (output->classes)
        return problem_set(
            problem, PROBLEM_INVALID, "shared memory and classification cannot be combined: output '%s'", output->name);
    SharedRegion *found = shared_memory_find(all, region, offset, size, problem);
    if (found == NULL)
        return false;
    call_state(call)->key.used = false; /* Do not cache: a client may change data in a region before it is sent. */
    shared_region_unref(output->region);
    output->region = found;
    output->offset = offset;
    output->room = size;
    return true;
}
