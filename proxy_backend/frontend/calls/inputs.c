#include "calls/inputs.h"

#include "net/limits.h"

/* Count a shape's elements. Returns false with the problem: a size is negative, or there are too many. */
static bool inputs_elements(const char *name, const int64_t *shape, size_t dims, uint64_t *elements, Problem *problem)
{
    *elements = 1;
    bool empty = false, overflows = false;
    for (size_t i = 0; i < dims; i++) {
        if (shape[i] < 0)
            return problem_set(problem, PROBLEM_INVALID, "the shape of input '%s' has a negative size: %lld", name,
                (long long)shape[i]);
        empty = empty || shape[i] == 0;
        overflows = overflows || __builtin_mul_overflow(*elements, (uint64_t)shape[i], elements);
    }
    if (empty)
        *elements = 0;
    else if (overflows || *elements > INT64_MAX)
        return problem_set(problem, PROBLEM_INVALID, "the shape of input '%s' has too many elements", name);
    return true;
}

/* Returns the size that precedes an element of BYTES. */
static uint32_t element_size(const char *at)
{
    uint32_t size;
    memcpy(&size, at, sizeof size);
    return size;
}

/* Count the elements, and check that no one extends beyond the end. */
static bool count_elements(
    CallState *state, const CallTensor *input, const char *bytes, size_t size, uint64_t *count, Problem *problem)
{
    size_t at = 0;
    for (*count = 0; at < size; ++*count) {
        if (size - at < sizeof(uint32_t))
            return problem_set(problem, PROBLEM_INVALID,
                "[request id: %s] incomplete string length indicator for inference input '%s' for model '%s', "
                "expecting "
                "%zu bytes but only %zu bytes available. Please make sure the string length indicator is in one "
                "buffer.",
                call_state_id(state), input->name, state->model, sizeof(uint32_t), size - at);
        uint32_t length = element_size(bytes + at);
        at += sizeof length;
        if (size - at < length)
            return problem_set(problem, PROBLEM_INVALID,
                "[request id: %s] incomplete string data for inference input '%s', expecting string of length %u but "
                "only %zu bytes available",
                call_state_id(state), input->name, length, size - at);
        at += length;
    }
    return true;
}

static bool set_shape(
    CallState *state, CallTensor *input, Slice datatype, const int64_t *shape, size_t dims, Problem *problem)
{
    input->datatype = datatype_named(datatype);
    if (dims > INPUT_DIMS)
        return problem_set(problem, PROBLEM_INVALID, "input '%s' has %zu dimensions; at most %d are allowed",
            input->name, dims, INPUT_DIMS);
    if (!inputs_elements(input->name, shape, dims, &input->elements, problem))
        return false;
    size_t each = datatype_size(input->datatype);
    input->expected = input->datatype == TYPE_BYTES ? UINT64_MAX : 0;
    if (each && __builtin_mul_overflow(input->elements, (uint64_t)each, &input->expected))
        return problem_set(problem, PROBLEM_INVALID, "the shape of input '%s' has too many elements", input->name);
    int64_t *copy = arena_allocate(&state->memory, (dims ? dims : 1) * sizeof *copy);
    if (copy == NULL)
        return problem_no_memory(problem);
    if (dims)
        memcpy(copy, shape, dims * sizeof *copy);
    input->shape = copy;
    input->dims = dims;
    call_state_key_name(state, KEY_INPUT, input->name);
    call_state_key(state, &input->datatype, sizeof input->datatype);
    call_state_key(state, &input->dims, sizeof input->dims);
    call_state_key(state, copy, dims * sizeof *copy);
    return true;
}

static CallTensor *add(CallState *state, Slice name, Problem *problem)
{
    uint64_t most = calls_settings_of(state->calls)->inputs;
    if (state->call.input_count >= most) {
        refusals_count(REFUSED_INPUTS);
        problem_set(problem, PROBLEM_TOO_LARGE, "the request has more than %llu inputs", (unsigned long long)most);
        return NULL;
    }
    const char *copy = call_state_copy(state, name, "the name of an input", problem);
    CallTensor *input =
        copy ? call_state_add_tensor(&state->call.inputs, &state->call.input_count, &state->input_room, copy) : NULL;
    if (copy && input == NULL)
        problem_no_memory(problem);
    return input;
}

CallTensor *call_input(Call *call, Slice name, Slice datatype, const int64_t *shape, size_t dims, Problem *problem)
{
    CallState *state = call_state(call);
    if (!inputs_end(state, problem))
        return NULL;
    CallTensor *input = add(state, name, problem);
    if (input == NULL || !set_shape(state, input, datatype, shape, dims, problem) ||
        !api_succeeded(triton.InferenceRequestAddInput(
                           state->request, input->name, (int)input->datatype, input->shape, input->dims),
            problem))
        return NULL;
    state->open = true;
    state->input_elements = 0;
    return input;
}

static bool append(
    CallState *state, CallTensor *input, const void *bytes, size_t size, int memory, int64_t device, Problem *problem)
{
    uint64_t count = 0;
    /* Elements in GPU memory cannot be checked here. */
    if (input->datatype == TYPE_BYTES && memory != MEMORY_GPU &&
        !count_elements(state, input, bytes, size, &count, problem))
        return false;
    if (memory == MEMORY_GPU)
        count = input->elements;
    state->input_elements += count;
    input->given += size;
    if (memory != MEMORY_GPU)
        call_state_key(state, bytes, size);
    return api_succeeded(
        triton.InferenceRequestAppendInputData(state->request, input->name, bytes, size, memory, device), problem);
}

static CallTensor *begun(CallState *state, Problem *problem)
{
    if (state->open)
        return &state->call.inputs[state->call.input_count - 1];
    problem_set(problem, PROBLEM_INTERNAL, "data was given without an input");
    return NULL;
}

bool call_input_data(Call *call, const void *bytes, size_t size, Problem *problem)
{
    CallState *state = call_state(call);
    CallTensor *input = begun(state, problem);
    return input && append(state, input, bytes, size, MEMORY_CPU, 0, problem);
}

bool call_input_region(Call *call, Slice region, uint64_t offset, uint64_t size, Problem *problem)
{
    CallState *state = call_state(call);
    CallTensor *input = begun(state, problem);
    if (input == NULL)
        return false;
    /* Do not cache: the client may change the input after its digest was computed and before the model reads it. */
    state->key.used = false;
    input->region = shared_memory_find(calls_settings_of(state->calls)->shared_memory, region, offset, size, problem);
    if (input->region == NULL)
        return false;
    bool cuda = shared_region_is_cuda(input->region);
    const void *bytes = (const char *)shared_region_base(input->region) + offset;
    if (input->datatype == TYPE_BYTES && !cuda) {
        /* Copy the input, because the client could change the original after a check. */
        void *copy = arena_allocate(&state->memory, size);
        if (copy == NULL)
            return problem_no_memory(problem);
        bytes = memcpy(copy, bytes, size);
        if (!shared_region_is_intact(input->region, problem))
            return false;
    }
    return append(
        state, input, bytes, size, cuda ? MEMORY_GPU : MEMORY_CPU, shared_region_device(input->region), problem);
}

bool call_input_raw(Call *call, const void *bytes, size_t size, Problem *problem)
{
    static const char name[] = "raw_input";
    CallState *state = call_state(call);
    state->raw = true;
    state->key.used = false;
    return api_succeeded(triton.InferenceRequestAddRawInput(state->request, name), problem) &&
        api_succeeded(
            triton.InferenceRequestAppendInputData(state->request, name, bytes, size, MEMORY_CPU, 0), problem);
}

bool inputs_end(CallState *state, Problem *problem)
{
    if (!state->open)
        return true;
    state->open = false;
    const CallTensor *input = &state->call.inputs[state->call.input_count - 1];
    call_state_key_name(state, KEY_INPUT_END, "");
    call_state_key(state, &input->given, sizeof input->given);
    if (input->datatype == TYPE_BYTES && state->input_elements > input->elements)
        return problem_set(problem, PROBLEM_INVALID,
            "[request id: %s] unexpected number of string elements %llu for inference input '%s' for model '%s', "
            "expecting %llu",
            call_state_id(state), (unsigned long long)state->input_elements, input->name, state->model,
            (unsigned long long)input->elements);
    if (input->datatype == TYPE_BYTES && state->input_elements < input->elements)
        return problem_set(problem, PROBLEM_INVALID,
            "[request id: %s] expected %llu string elements for inference input '%s' for model '%s', got %llu",
            call_state_id(state), (unsigned long long)input->elements, input->name, state->model,
            (unsigned long long)state->input_elements);
    /* An untyped input has the model's type, which the core applies. */
    bool is_sized = input->datatype != TYPE_BYTES && input->datatype != TYPE_INVALID;
    if (is_sized && input->given != input->expected)
        return problem_set(problem, PROBLEM_INVALID,
            "[request id: %s] input byte size mismatch for input '%s' for model '%s'. Expected %llu, got %llu",
            call_state_id(state), input->name, state->model, (unsigned long long)input->expected,
            (unsigned long long)input->given);
    return true;
}
