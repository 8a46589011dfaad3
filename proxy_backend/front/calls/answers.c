#include "calls/answers.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "calls/classification.h"
#include "calls/running.h"

#include <stdlib.h>

static AnswerParts *take_parts(CallParts *parts)
{
    pthread_mutex_lock(&parts->lock);
    AnswerParts *taken = parts->spare;
    if (taken)
        parts->spare = taken->next;
    pthread_mutex_unlock(&parts->lock);
    if (taken == NULL)
        return calloc(1, sizeof *taken);
    Arena memory = taken->memory;
    *taken = (AnswerParts){.memory = memory};
    return taken;
}

void answer_release(Answer *answer)
{
    AnswerParts *given = (AnswerParts *)answer;
    CallParts *parts = parts_of(answer->call);
    if (given->response)
        api_ignore(triton.InferenceResponseDelete(given->response), "deleting a response");
    given->response = NULL;
    cached_response_unref(given->cached);
    given->cached = NULL;
    problem_clear(&answer->problem);
    arena_reset(&given->memory, calls_settings_of(parts->calls)->kept_bytes);
    if (given != &parts->last_resort) {
        pthread_mutex_lock(&parts->lock);
        given->next = parts->spare;
        parts->spare = given;
        pthread_mutex_unlock(&parts->lock);
    }
    call_unref(&parts->call);
}

/* Returns a model's text as valid UTF-8. NULL without memory. */
static const char *mended(AnswerParts *given, const char *text)
{
    Slice slice = slice_of(text ? text : "");
    if (utf8_is_valid(slice))
        return slice.start;
    char *copy = arena_take(&given->memory, slice.size + 1);
    if (copy) {
        memcpy(copy, slice.start, slice.size + 1);
        for (size_t at = 0; (at += utf8_valid_prefix(copy + at, slice.size - at)) < slice.size;)
            copy[at++] = '?';
    }
    return copy;
}

static bool read_parameter(AnswerParts *given, uint32_t index, AnswerParameter *parameter, Problem *problem)
{
    const char *name;
    const void *value;
    if (!api_succeeded(
            triton.InferenceResponseParameter(given->response, index, &name, &parameter->type, &value), problem))
        return false;
    parameter->name = mended(given, name);
    if (parameter->type == PARAMETER_STRING)
        parameter->string = mended(given, value);
    else if (parameter->type == PARAMETER_INT)
        parameter->integer = *(const int64_t *)value;
    else if (parameter->type == PARAMETER_BOOL)
        parameter->boolean = *(const bool *)value;
    else if (parameter->type == PARAMETER_DOUBLE)
        parameter->number = *(const double *)value;
    else
        return problem_set(
            problem, PROBLEM_INTERNAL, "response parameter '%s' has a type that is not known", parameter->name);
    bool lost = parameter->name == NULL || (parameter->type == PARAMETER_STRING && parameter->string == NULL);
    return lost ? problem_no_memory(problem) : true;
}

static bool read_parameters(AnswerParts *given, Problem *problem)
{
    uint32_t count = 0;
    if (!api_succeeded(triton.InferenceResponseParameterCount(given->response, &count), problem))
        return false;
    AnswerParameter *all = count ? arena_take(&given->memory, count * sizeof *all) : NULL;
    if (count && all == NULL)
        return problem_no_memory(problem);
    for (uint32_t i = 0; i < count; i++)
        if (!read_parameter(given, i, &all[i], problem))
            return false;
    given->answer.parameters = all;
    given->answer.parameter_count = count;
    return true;
}

static const CallTensor *asked_for(const Call *call, const char *name)
{
    for (size_t i = 0; i < call->output_count; i++)
        if (strcmp(call->outputs[i].name, name) == 0)
            return &call->outputs[i];
    return NULL;
}

static bool read_output(AnswerParts *given, uint32_t index, AnswerOutput *output, Problem *problem)
{
    const char *name;
    int datatype, memory_type;
    int64_t memory_type_id;
    void *buffer_userp;
    if (!api_succeeded(triton.InferenceResponseOutput(given->response, index, &name, &datatype, &output->shape,
                           &output->dims, &output->bytes, &output->size, &memory_type, &memory_type_id, &buffer_userp),
            problem))
        return false;
    output->asked = asked_for(given->answer.call, name);
    output->name = mended(given, name);
    if (output->name == NULL)
        return problem_no_memory(problem);
    output->datatype = (DataType)datatype;
    output->in_region = outputs_in_region(buffer_userp);
    output->elements = 1;
    for (uint64_t i = 0; i < output->dims; i++)
        if (output->shape[i] < 0 ||
            __builtin_mul_overflow(output->elements, (uint64_t)output->shape[i], &output->elements))
            return problem_set(problem, PROBLEM_INTERNAL, "output '%s' of model '%s' has a shape that cannot be",
                output->name, given->answer.model);
    if (memory_type == MEMORY_GPU && !output->in_region)
        return problem_set(problem, PROBLEM_INTERNAL, "output '%s' lies in a GPU", output->name);
    size_t each = datatype_size(output->datatype);
    if (!output->in_region && each && output->size / each < output->elements)
        return problem_set(problem, PROBLEM_INTERNAL,
            "output '%s' of model '%s' has %zu bytes, fewer than its shape says", output->name, given->answer.model,
            output->size);
    return true;
}

static bool read_outputs(AnswerParts *given, Problem *problem)
{
    uint32_t count = 0;
    if (!api_succeeded(triton.InferenceResponseOutputCount(given->response, &count), problem))
        return false;
    AnswerOutput *all = count ? arena_take(&given->memory, count * sizeof *all) : NULL;
    if (count && all == NULL)
        return problem_no_memory(problem);
    for (uint32_t i = 0; i < count; i++) {
        all[i] = (AnswerOutput){0};
        if (!read_output(given, i, &all[i], problem))
            return false;
        if (all[i].asked && all[i].asked->classes && !classification_make(given, i, &all[i], problem))
            return false;
    }
    given->answer.outputs = all;
    given->answer.output_count = count;
    return true;
}

static bool read_response(AnswerParts *given, Problem *problem)
{
    Answer *answer = &given->answer;
    if (!api_look_at(triton.InferenceResponseError(given->response), problem))
        return false;
    const char *model, *id;
    if (!api_succeeded(triton.InferenceResponseModel(given->response, &model, &answer->version), problem) ||
        !api_succeeded(triton.InferenceResponseId(given->response, &id), problem))
        return false;
    answer->model = mended(given, model);
    answer->id = parts_of(answer->call)->id_from_header ? "" : mended(given, id);
    if (answer->model == NULL || answer->id == NULL)
        return problem_no_memory(problem);
    return read_parameters(given, problem) && read_outputs(given, problem);
}

/* Returns whether all regions of a call are complete, so that neither inputs nor outputs were lost. */
static bool regions_are_whole(const Call *call, Problem *problem)
{
    for (size_t i = 0; i < call->input_count; i++)
        if (call->inputs[i].region && !shared_region_is_whole(call->inputs[i].region, problem))
            return false;
    for (size_t i = 0; i < call->output_count; i++)
        if (call->outputs[i].region && !shared_region_is_whole(call->outputs[i].region, problem))
            return false;
    return true;
}

/* Deliver answers one at a time; a thread that arrives during this leaves its answer to the delivering one. */
static void give(CallParts *parts, AnswerParts *given)
{
    pthread_mutex_lock(&parts->lock);
    *parts->last = given;
    parts->last = &given->next;
    bool mine = !parts->giving;
    parts->giving = true;
    while (mine && parts->queue) {
        AnswerParts *next = parts->queue;
        parts->queue = next->next;
        if (parts->queue == NULL)
            parts->last = &parts->queue;
        pthread_mutex_unlock(&parts->lock);
        bool final = next->answer.final;
        parts->answered(&parts->call, &next->answer);
        pthread_mutex_lock(&parts->lock);
        if (final)
            break;
    }
    if (mine)
        parts->giving = false;
    pthread_mutex_unlock(&parts->lock);
}

/* There is no memory for an answer. The preallocated last one reports that. */
static AnswerParts *lose(CallParts *parts, TRITONSERVER_InferenceResponse *response, bool final)
{
    log_error("no memory for an answer of model '%s'", parts->model);
    if (response)
        api_ignore(triton.InferenceResponseDelete(response), "deleting a response");
    parts->lost = true;
    parts->last_resort = (AnswerParts){0};
    return final ? &parts->last_resort : NULL;
}

static void complete(CallParts *parts, TRITONSERVER_InferenceResponse *response, bool final)
{
    AnswerParts *given = take_parts(parts);
    if (given)
        given->response = response;
    else if ((given = lose(parts, response, final)) == NULL)
        return;
    Answer *answer = &given->answer;
    answer->call = call_ref(&parts->call);
    answer->final = final;
    answer->model = parts->model;
    answer->id = parts->id ? parts->id : "";
    answer->version = -1;
    answer->empty = given->response == NULL;
    if (parts->trace)
        trace_event(parts->trace, "INFER_RESPONSE_COMPLETE", clock_ns());
    bool read = given->response == NULL ||
        (read_response(given, &answer->problem) && regions_are_whole(&parts->call, &answer->problem));
    if (final && parts->lost && read)
        read = problem_no_memory(&answer->problem);
    if (!read) {
        answer->output_count = answer->parameter_count = 0;
        answer->outputs = NULL;
        answer->parameters = NULL;
    }
    if (parts->key.used && read && final && given->response)
        response_cache_add(calls_settings_of(parts->calls)->cache, &parts->key, answer);
    give(parts, given);
}

/* The parts of a response that do not depend on the call stay in it; outputs refer to the call's request for them. */
static bool read_cached(AnswerParts *given, Problem *problem)
{
    Answer *answer = &given->answer;
    const Answer *kept = cached_response_answer(given->cached);
    size_t count = kept->output_count;
    AnswerOutput *outputs = count ? arena_take(&given->memory, count * sizeof *outputs) : NULL;
    if (count && outputs == NULL)
        return problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        outputs[i] = kept->outputs[i];
        outputs[i].asked = asked_for(answer->call, outputs[i].name);
    }
    answer->outputs = outputs;
    answer->output_count = count;
    answer->parameters = kept->parameters;
    answer->parameter_count = kept->parameter_count;
    answer->model = kept->model;
    answer->version = kept->version;
    return true;
}

void answers_give_cached(CallParts *parts, CachedResponse *response)
{
    call_ref(&parts->call); /* the caller's may be dropped in `answered` */
    AnswerParts *given = take_parts(parts);
    if (given == NULL)
        given = lose(parts, NULL, true);
    Answer *answer = &given->answer;
    given->cached = response;
    answer->call = call_ref(&parts->call);
    answer->final = true;
    answer->model = parts->model;
    answer->id = parts->id ? parts->id : "";
    if (parts->lost)
        problem_no_memory(&answer->problem);
    else
        read_cached(given, &answer->problem);
    give(parts, given);
    call_unref(&parts->call);
}

void answers_complete(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    CallParts *parts = userp;
    bool final = (flags & RESPONSE_FINAL) != 0;
    /* Another thread may deliver the last answer, and drop its reference to the call, during this. */
    call_ref(&parts->call);
    if (response || final)
        complete(parts, response, final);
    if (final)
        running_part_done(parts);
    call_unref(&parts->call);
}
