#include "calls/call.h"

#include "base/utf8.h"
#include "calls/parts.h"
#include "net/limits.h"

#include <stdio.h>
#include <stdlib.h>

enum { FIRST_TENSORS = 4 };

Call *call_ref(Call *call)
{
    __atomic_add_fetch(&parts_of(call)->refs, 1, __ATOMIC_RELAXED);
    return call;
}

void call_unref(Call *call)
{
    if (__atomic_sub_fetch(&parts_of(call)->refs, 1, __ATOMIC_ACQ_REL) == 0)
        calls_give_back(parts_of(call));
}

void *call_memory(Call *call, size_t size)
{
    return arena_take(&parts_of(call)->memory, size);
}

const char *parts_copy(CallParts *parts, Slice text, const char *what, Problem *problem)
{
    if (!utf8_is_valid(text) || (text.size && memchr(text.start, '\0', text.size))) {
        problem_set(problem, PROBLEM_INVALID, "%s is not valid UTF-8, or has a NUL in it", what);
        return NULL;
    }
    char *copy = arena_take(&parts->memory, text.size + 1);
    if (copy == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    if (text.size)
        memcpy(copy, text.start, text.size);
    copy[text.size] = '\0';
    return copy;
}

const char *parts_id(const CallParts *parts)
{
    return parts->id && *parts->id ? parts->id : *parts->header_id ? parts->header_id : "<id_unknown>";
}

CallTensor *parts_add_tensor(CallTensor **tensors, size_t *count, size_t *room, const char *name)
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
    return calls_settings_of(parts_of(call)->calls)->server;
}

bool call_model(Call *call, Slice model, Slice version, Problem *problem)
{
    CallParts *parts = parts_of(call);
    Server *server = call_server(call);
    ServerName name;
    int64_t number;
    uint32_t flags = 0;
    if (!server_name(model, "model name", &name, problem) || !server_version(version, &number, problem))
        return false;
    size_t left = awaited_left(server->awaited);
    if (!api_succeeded(
            triton.ServerModelTransactionProperties(server->server, name.text, number, &flags, NULL), problem)) {
        awaited_asked(server->awaited, model, left, problem);
        return false;
    }
    call->decoupled = (flags & ANSWERS_MANY_TIMES) != 0;
    parts->model = parts_copy(parts, model, "the model name", problem);
    ResponseCache *cache = calls_settings_of(parts->calls)->cache;
    if (cache && parts->model && !call->decoupled)
        response_cache_begin(cache, parts->model, number, &parts->key);
    return parts->model &&
        api_succeeded(triton.InferenceRequestNew(&parts->request, server->server, parts->model, number), problem);
}

bool call_waits(Call *call, Problem *problem, AwaitedBy *waiter, AwaitedThen *then)
{
    call_ref(call);
    if (awaited_wait(call_server(call)->awaited, problem, waiter, then))
        return true;
    call_unref(call);
    return false;
}

bool call_id(Call *call, Slice id, Problem *problem)
{
    CallParts *parts = parts_of(call);
    parts->id = parts_copy(parts, id, "the request's id", problem);
    return parts->id && api_succeeded(triton.InferenceRequestSetId(parts->request, parts->id), problem);
}

void call_origin_header(Call *call, Slice name, Slice value)
{
    CallParts *parts = parts_of(call);
    char *to;
    size_t room;
    if (slice_is_nocase(name, "traceparent"))
        to = parts->trace_parent, room = sizeof parts->trace_parent;
    else if (slice_is_nocase(name, "tracestate"))
        to = parts->trace_state, room = sizeof parts->trace_state;
    else if (slice_is_nocase(name, "x-request-id"))
        to = parts->header_id, room = sizeof parts->header_id;
    else
        return;
    /* Ignore values that are longer than the standard allows. */
    if (value.size == 0 || value.size >= room || !utf8_is_valid(value) || memchr(value.start, 0, value.size))
        return;
    memcpy(to, value.start, value.size);
    to[value.size] = '\0';
}

/* Returns the trace of "version-trace-span-flags". */
static Slice trace_of(Slice parent)
{
    Slice version, trace, span;
    bool whole = slice_split(&parent, '-', &version) && slice_split(&parent, '-', &trace) &&
        slice_split(&parent, '-', &span) && parent.start;
    return whole ? trace : (Slice){0};
}

bool parts_use_header_id(CallParts *parts, Problem *problem)
{
    if (parts->id && *parts->id)
        return true;
    if (!*parts->header_id) {
        Slice trace = trace_of(slice_of(parts->trace_parent));
        if (trace.size)
            memcpy(parts->header_id, trace.start, trace.size); /* it has room for all of trace_parent */
        parts->header_id[trace.size] = '\0';
    }
    parts->id_from_header = *parts->header_id;
    return !parts->id_from_header ||
        api_succeeded(triton.InferenceRequestSetId(parts->request, parts->header_id), problem);
}

/* ── parameters ────────────────────────────────────────────────────────────────────────────────── */

/* The types of the parameters that Triton reads itself. */
static const char *const type_names[] = {[PARAMETER_STRING] = "a string",
    [PARAMETER_INT] = "a whole number",
    [PARAMETER_BOOL] = "a boolean",
    [PARAMETER_DOUBLE] = "a double"};

static bool wrong(const char *name, const CallParameter *value, const char *wanted, Problem *problem)
{
    bool is_core = value->type >= 0 && (size_t)value->type < sizeof type_names / sizeof *type_names;
    return problem_set(problem, PROBLEM_INVALID, "parameter '%s' is %s, but it has to be %s", name,
        is_core ? type_names[value->type] : "a large number", wanted);
}

static bool take_sequence_id(CallParts *parts, const CallParameter *value, Problem *problem)
{
    parts->key.used = false; /* the answer depends on earlier requests */
    if (value->type == PARAMETER_INT || value->type == PARAMETER_UNSIGNED) {
        uint64_t id = value->type == PARAMETER_INT ? (uint64_t)value->integer : value->natural;
        char digits[24];
        snprintf(digits, sizeof digits, "%llu", (unsigned long long)id);
        parts->sequence = id ? parts_copy(parts, slice_of(digits), "the sequence_id", problem) : NULL;
        if (id && parts->sequence == NULL)
            return false;
        return api_succeeded(triton.InferenceRequestSetCorrelationId(parts->request, id), problem);
    }
    if (value->type != PARAMETER_STRING)
        return wrong("sequence_id", value, "a whole number or a string", problem);
    const char *id = parts_copy(parts, value->string, "the sequence_id", problem);
    parts->sequence = id && *id ? id : NULL;
    return id && api_succeeded(triton.InferenceRequestSetCorrelationIdString(parts->request, id), problem);
}

static bool take_sequence_flag(
    CallParts *parts, const char *name, uint32_t flag, const CallParameter *value, Problem *problem)
{
    if (value->type != PARAMETER_BOOL)
        return wrong(name, value, "a boolean", problem);
    parts->key.used = false;
    parts->sequence_flags = value->boolean ? parts->sequence_flags | flag : parts->sequence_flags & ~flag;
    return true;
}

static bool read_natural(const char *name, const CallParameter *value, uint64_t *natural, Problem *problem)
{
    if (value->type != PARAMETER_UNSIGNED && (value->type != PARAMETER_INT || value->integer < 0))
        return wrong(name, value, "a whole number that is not negative", problem);
    *natural = value->type == PARAMETER_INT ? (uint64_t)value->integer : value->natural;
    return true;
}

static bool take_priority(CallParts *parts, const CallParameter *value, Problem *problem)
{
    uint64_t priority = 0;
    return read_natural("priority", value, &priority, problem) &&
        api_succeeded(triton.InferenceRequestSetPriorityUInt64(parts->request, priority), problem);
}

static bool take_timeout(CallParts *parts, const CallParameter *value, Problem *problem)
{
    uint64_t timeout = 0;
    return read_natural("timeout", value, &timeout, problem) &&
        api_succeeded(triton.InferenceRequestSetTimeoutMicroseconds(parts->request, timeout), problem);
}

/* Pass a parameter to the model. */
static bool hand_on(CallParts *parts, const char *name, const CallParameter *value, Problem *problem)
{
    const char *string;
    parts_key_name(parts, KEY_PARAMETER, name);
    parts_key(parts, &value->type, sizeof value->type);
    switch (value->type) {
    case PARAMETER_STRING:
        string = parts_copy(parts, value->string, "the value of a parameter", problem);
        if (string)
            parts_key_name(parts, KEY_PARAMETER, string);
        return string &&
            api_succeeded(triton.InferenceRequestSetStringParameter(parts->request, name, string), problem);
    case PARAMETER_INT:
        parts_key(parts, &value->integer, sizeof value->integer);
        return api_succeeded(triton.InferenceRequestSetIntParameter(parts->request, name, value->integer), problem);
    case PARAMETER_BOOL:
        parts_key(parts, &value->boolean, sizeof value->boolean);
        return api_succeeded(triton.InferenceRequestSetBoolParameter(parts->request, name, value->boolean), problem);
    case PARAMETER_UNSIGNED:
        parts_key(parts, &value->natural, sizeof value->natural);
        return api_succeeded(
            triton.InferenceRequestSetDoubleParameter(parts->request, name, (double)value->natural), problem);
    case PARAMETER_DOUBLE:
        parts_key(parts, &value->number, sizeof value->number);
        return api_succeeded(triton.InferenceRequestSetDoubleParameter(parts->request, name, value->number), problem);
    default:
        return problem_set(problem, PROBLEM_INVALID, "parameter '%s' has a type that is not known", name);
    }
}

static bool one_more(CallParts *parts, Problem *problem)
{
    uint64_t most = calls_settings_of(parts->calls)->inputs;
    if (parts->parameter_count++ < most)
        return true;
    refusals_count(REFUSED_INPUTS);
    return problem_set(
        problem, PROBLEM_TOO_LARGE, "the request has more than %llu parameters", (unsigned long long)most);
}

bool call_parameter(Call *call, Slice name, const CallParameter *value, Problem *problem)
{
    CallParts *parts = parts_of(call);
    if (slice_is(name, "sequence_id"))
        return take_sequence_id(parts, value, problem);
    if (slice_is(name, "sequence_start"))
        return take_sequence_flag(parts, "sequence_start", SEQUENCE_START, value, problem);
    if (slice_is(name, "sequence_end"))
        return take_sequence_flag(parts, "sequence_end", SEQUENCE_END, value, problem);
    if (slice_is(name, "priority"))
        return take_priority(parts, value, problem);
    if (slice_is(name, "timeout"))
        return take_timeout(parts, value, problem);
    if (slice_starts(name, "triton_"))
        return problem_set(problem, PROBLEM_INVALID,
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.");
    const char *copy = one_more(parts, problem) ? parts_copy(parts, name, "the name of a parameter", problem) : NULL;
    return copy && hand_on(parts, copy, value, problem);
}

static bool is_reserved(Slice name)
{
    return slice_starts_nocase(name, "sequence_") || slice_starts_nocase(name, "triton_") ||
        slice_is_nocase(name, "priority") || slice_is_nocase(name, "timeout");
}

bool call_header(Call *call, Slice name, Slice value, Problem *problem)
{
    CallParts *parts = parts_of(call);
    if (is_reserved(name))
        return problem_set(problem, PROBLEM_INVALID,
            "header '%.*s' cannot be forwarded: requests have a parameter of that name, which is Triton's. Let the "
            "header-forward-pattern not match it, or do not send it",
            SLICE_ARGS(name));
    const char *copy = one_more(parts, problem) ? parts_copy(parts, name, "the name of a header", problem) : NULL;
    CallParameter parameter = {.type = PARAMETER_STRING, .string = value};
    return copy && hand_on(parts, copy, &parameter, problem);
}

/* ── outputs ───────────────────────────────────────────────────────────────────────────────────── */

CallTensor *call_output(Call *call, Slice name, Problem *problem)
{
    CallParts *parts = parts_of(call);
    uint64_t most = calls_settings_of(parts->calls)->inputs;
    if (call->output_count >= most) {
        refusals_count(REFUSED_INPUTS);
        problem_set(
            problem, PROBLEM_TOO_LARGE, "the request asks for more than %llu outputs", (unsigned long long)most);
        return NULL;
    }
    const char *copy = parts_copy(parts, name, "the name of an output", problem);
    if (copy == NULL || !api_succeeded(triton.InferenceRequestAddRequestedOutput(parts->request, copy), problem))
        return NULL;
    CallTensor *output = parts_add_tensor(&call->outputs, &call->output_count, &parts->output_room, copy);
    if (output == NULL)
        problem_no_memory(problem);
    parts_key_name(parts, KEY_OUTPUT, copy);
    return output;
}

bool call_output_classes(Call *call, CallTensor *output, int64_t classes, Problem *problem)
{
    parts_of(call)->key.used = false;
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
    SharedMemory *all = calls_settings_of(parts_of(call)->calls)->shared_memory;
    if (output->classes)
        return problem_set(
            problem, PROBLEM_INVALID, "shared memory and classification cannot be combined: output '%s'", output->name);
    SharedRegion *found = shared_memory_find(all, region, offset, size, problem);
    if (found == NULL)
        return false;
    parts_of(call)->key.used = false; /* data in a region may change before it is sent */
    shared_region_unref(output->region);
    output->region = found;
    output->offset = offset;
    output->room = size;
    return true;
}
