#include "calls/responses.h"

#include "common/clock.h"
#include "base/log.h"
#include "common/utf8.h"
#include "calls/classification.h"
#include "calls/execution.h"

#include <stdlib.h>

static ResponseState *acquire_response(CallState *state)
{
    pthread_mutex_lock(&state->lock);
    ResponseState *taken = state->spare;
    if (taken)
        state->spare = taken->next;
    pthread_mutex_unlock(&state->lock);
    if (taken == NULL)
        return calloc(1, sizeof *taken);
    Arena memory = taken->memory;
    *taken = (ResponseState){.memory = memory};
    return taken;
}

void call_response_release(CallResponse *response)
{
    ResponseState *response_state = (ResponseState *)response;
    CallState *state = call_state(response->call);
    if (response_state->core_response)
        api_ignore(triton.InferenceResponseDelete(response_state->core_response), "deleting a response");
    response_state->core_response = NULL;
    cached_response_unref(response_state->cached);
    response_state->cached = NULL;
    problem_clear(&response->problem);
    arena_reset(&response_state->memory, calls_settings_of(state->calls)->kept_bytes);
    if (response_state != &state->last_resort) {
        pthread_mutex_lock(&state->lock);
        response_state->next = state->spare;
        state->spare = response_state;
        pthread_mutex_unlock(&state->lock);
    }
    call_unref(&state->call);
}

/* Returns a text of a model as valid UTF-8, or NULL without memory. */
static const char *sanitized(ResponseState *response_state, const char *text)
{
    Slice slice = slice_of(text ? text : "");
    if (utf8_is_valid(slice))
        return slice.start;
    char *copy = arena_allocate(&response_state->memory, slice.size + 1);
    if (copy) {
        memcpy(copy, slice.start, slice.size + 1);
        for (size_t at = 0; (at += utf8_valid_prefix(copy + at, slice.size - at)) < slice.size;)
            copy[at++] = '?';
    }
    return copy;
}

static bool read_parameter(
    ResponseState *response_state, uint32_t index, ResponseParameter *parameter, Problem *problem)
{
    const char *name;
    const void *value;
    if (!api_succeeded(
            triton.InferenceResponseParameter(response_state->core_response, index, &name, &parameter->type, &value),
            problem))
        return false;
    parameter->name = sanitized(response_state, name);
    if (parameter->type == PARAMETER_STRING)
        parameter->string = sanitized(response_state, value);
    else if (parameter->type == PARAMETER_INT)
        parameter->integer = *(const int64_t *)value;
    else if (parameter->type == PARAMETER_BOOL)
        parameter->boolean = *(const bool *)value;
    else if (parameter->type == PARAMETER_DOUBLE)
        parameter->number = *(const double *)value;
    else
        return problem_set(problem, PROBLEM_INTERNAL, "response parameter '%s' has an unknown type", parameter->name);
    bool lost = parameter->name == NULL || (parameter->type == PARAMETER_STRING && parameter->string == NULL);
    return lost ? problem_no_memory(problem) : true;
}

static bool read_parameters(ResponseState *response_state, Problem *problem)
{
    uint32_t count = 0;
    if (!api_succeeded(triton.InferenceResponseParameterCount(response_state->core_response, &count), problem))
        return false;
    ResponseParameter *all = count ? arena_allocate(&response_state->memory, count * sizeof *all) : NULL;
    if (count && all == NULL)
        return problem_no_memory(problem);
    for (uint32_t i = 0; i < count; i++)
        if (!read_parameter(response_state, i, &all[i], problem))
            return false;
    response_state->response.parameters = all;
    response_state->response.parameter_count = count;
    return true;
}

static const CallTensor *requested_output(const Call *call, const char *name)
{
    for (size_t i = 0; i < call->output_count; i++)
        if (strcmp(call->outputs[i].name, name) == 0)
            return &call->outputs[i];
    return NULL;
}

static bool read_output(ResponseState *response_state, uint32_t index, ResponseOutput *output, Problem *problem)
{
    const char *name;
    int datatype, memory_type;
    int64_t memory_type_id;
    void *buffer_userp;
    if (!api_succeeded(
            triton.InferenceResponseOutput(response_state->core_response, index, &name, &datatype, &output->shape,
                &output->dims, &output->bytes, &output->size, &memory_type, &memory_type_id, &buffer_userp),
            problem))
        return false;
    output->requested = requested_output(response_state->response.call, name);
    output->name = sanitized(response_state, name);
    if (output->name == NULL)
        return problem_no_memory(problem);
    output->datatype = (DataType)datatype;
    output->in_region = outputs_in_region(buffer_userp);
    output->elements = 1;
    for (uint64_t i = 0; i < output->dims; i++)
        if (output->shape[i] < 0 ||
            __builtin_mul_overflow(output->elements, (uint64_t)output->shape[i], &output->elements))
            return problem_set(problem, PROBLEM_INTERNAL, "output '%s' of model '%s' has an invalid shape",
                output->name, response_state->response.model);
    if (memory_type == MEMORY_GPU && !output->in_region)
        return problem_set(problem, PROBLEM_INTERNAL, "output '%s' is in GPU memory", output->name);
    size_t each = datatype_size(output->datatype);
    if (!output->in_region && each && output->size / each < output->elements)
        return problem_set(problem, PROBLEM_INTERNAL,
            "output '%s' of model '%s' has %zu bytes, fewer than its shape requires", output->name,
            response_state->response.model, output->size);
    return true;
}

static bool read_outputs(ResponseState *response_state, Problem *problem)
{
    uint32_t count = 0;
    if (!api_succeeded(triton.InferenceResponseOutputCount(response_state->core_response, &count), problem))
        return false;
    ResponseOutput *all = count ? arena_allocate(&response_state->memory, count * sizeof *all) : NULL;
    if (count && all == NULL)
        return problem_no_memory(problem);
    for (uint32_t i = 0; i < count; i++) {
        all[i] = (ResponseOutput){0};
        if (!read_output(response_state, i, &all[i], problem))
            return false;
        if (all[i].requested && all[i].requested->classes && !classification_make(response_state, i, &all[i], problem))
            return false;
    }
    response_state->response.outputs = all;
    response_state->response.output_count = count;
    return true;
}

static bool read_response(ResponseState *response_state, Problem *problem)
{
    CallResponse *response = &response_state->response;
    if (!api_check_borrowed(triton.InferenceResponseError(response_state->core_response), problem))
        return false;
    const char *model, *id;
    if (!api_succeeded(
            triton.InferenceResponseModel(response_state->core_response, &model, &response->version), problem) ||
        !api_succeeded(triton.InferenceResponseId(response_state->core_response, &id), problem))
        return false;
    response->model = sanitized(response_state, model);
    response->id = call_state(response->call)->id_from_header ? "" : sanitized(response_state, id);
    if (response->model == NULL || response->id == NULL)
        return problem_no_memory(problem);
    return read_parameters(response_state, problem) && read_outputs(response_state, problem);
}

/* Returns whether all shared memory regions of a call are complete, so that no input or output was lost. */
static bool regions_are_intact(const Call *call, Problem *problem)
{
    for (size_t i = 0; i < call->input_count; i++)
        if (call->inputs[i].region && !shared_region_is_intact(call->inputs[i].region, problem))
            return false;
    for (size_t i = 0; i < call->output_count; i++)
        if (call->outputs[i].region && !shared_region_is_intact(call->outputs[i].region, problem))
            return false;
    return true;
}

/* Deliver an answer. Answers are delivered one at a time: if another thread is delivering one, it also delivers this
 * one.
 */
static void deliver(CallState *state, ResponseState *response_state)
{
    pthread_mutex_lock(&state->lock);
    *state->last = response_state;
    state->last = &response_state->next;
    bool mine = !state->is_delivering;
    state->is_delivering = true;
    while (mine && state->queue) {
        ResponseState *next = state->queue;
        state->queue = next->next;
        if (state->queue == NULL)
            state->last = &state->queue;
        pthread_mutex_unlock(&state->lock);
        bool final = next->response.final;
        state->on_response(&state->call, &next->response);
        pthread_mutex_lock(&state->lock);
        if (final)
            break;
    }
    if (mine)
        state->is_delivering = false;
    pthread_mutex_unlock(&state->lock);
}

/* Without memory for an answer, report this with the preallocated last answer. */
static ResponseState *use_last_resort(CallState *state, TRITONSERVER_InferenceResponse *core_response, bool final)
{
    log_error("no memory for an answer of model '%s'", state->model);
    if (core_response)
        api_ignore(triton.InferenceResponseDelete(core_response), "deleting a response");
    state->lost = true;
    state->last_resort = (ResponseState){0};
    return final ? &state->last_resort : NULL;
}

static void complete(CallState *state, TRITONSERVER_InferenceResponse *core_response, bool final)
{
    ResponseState *response_state = acquire_response(state);
    if (response_state)
        response_state->core_response = core_response;
    else if ((response_state = use_last_resort(state, core_response, final)) == NULL)
        return;
    CallResponse *response = &response_state->response;
    response->call = call_ref(&state->call);
    response->final = final;
    response->model = state->model;
    response->id = state->id ? state->id : "";
    response->version = -1;
    response->empty = response_state->core_response == NULL;
    if (state->trace)
        trace_event(state->trace, "INFER_RESPONSE_COMPLETE", clock_ns());
    bool read = response_state->core_response == NULL ||
        (read_response(response_state, &response->problem) && regions_are_intact(&state->call, &response->problem));
    if (final && state->lost && read)
        read = problem_no_memory(&response->problem);
    if (!read) {
        response->output_count = response->parameter_count = 0;
        response->outputs = NULL;
        response->parameters = NULL;
    }
    if (state->key.used && read && final && response_state->core_response)
        response_cache_add(calls_settings_of(state->calls)->cache, &state->key, response);
    deliver(state, response_state);
}

/* Fill an answer from the cache. What does not depend on the call stays in the cached response; the outputs get the
 * descriptions of the call's request.
 */
static bool read_cached(ResponseState *response_state, Problem *problem)
{
    CallResponse *response = &response_state->response;
    const CallResponse *kept = cached_response_get(response_state->cached);
    size_t count = kept->output_count;
    ResponseOutput *outputs = count ? arena_allocate(&response_state->memory, count * sizeof *outputs) : NULL;
    if (count && outputs == NULL)
        return problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        outputs[i] = kept->outputs[i];
        outputs[i].requested = requested_output(response->call, outputs[i].name);
    }
    response->outputs = outputs;
    response->output_count = count;
    response->parameters = kept->parameters;
    response->parameter_count = kept->parameter_count;
    response->model = kept->model;
    response->version = kept->version;
    return true;
}

void responses_deliver_cached(CallState *state, CachedResponse *core_response)
{
    call_ref(&state->call); /* `on_response` may drop the caller's reference. */
    ResponseState *response_state = acquire_response(state);
    if (response_state == NULL)
        response_state = use_last_resort(state, NULL, true);
    CallResponse *response = &response_state->response;
    response_state->cached = core_response;
    response->call = call_ref(&state->call);
    response->final = true;
    response->model = state->model;
    response->id = state->id ? state->id : "";
    if (state->lost)
        problem_no_memory(&response->problem);
    else
        read_cached(response_state, &response->problem);
    deliver(state, response_state);
    call_unref(&state->call);
}

void responses_complete(TRITONSERVER_InferenceResponse *core_response, const uint32_t flags, void *userp)
{
    CallState *state = userp;
    bool final = (flags & RESPONSE_FINAL) != 0;
    /* Meanwhile, another thread may deliver the last answer and drop its reference to the call. */
    call_ref(&state->call);
    if (core_response || final)
        complete(state, core_response, final);
    if (final)
        call_part_done(state);
    call_unref(&state->call);
}
