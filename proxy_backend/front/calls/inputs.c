#include "calls/inputs.h"

#include "net/limits.h"

bool inputs_elements(const char *name, const int64_t *shape, size_t dims, uint64_t *elements, Problem *problem)
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

/* Returns the size before an element of BYTES. */
static uint32_t element_size(const char *at)
{
    uint32_t size;
    memcpy(&size, at, sizeof size);
    return size;
}

/* Count the elements, and check that none extends beyond the end. */
static bool count_elements(
    CallParts *parts, const CallTensor *input, const char *bytes, size_t size, uint64_t *count, Problem *problem)
{
    size_t at = 0;
    for (*count = 0; at < size; ++*count) {
        if (size - at < sizeof(uint32_t))
            return problem_set(problem, PROBLEM_INVALID,
                "[request id: %s] incomplete string length indicator for inference input '%s' for model '%s', "
                "expecting "
                "%zu bytes but only %zu bytes available. Please make sure the string length indicator is in one "
                "buffer.",
                parts_id(parts), input->name, parts->model, sizeof(uint32_t), size - at);
        uint32_t length = element_size(bytes + at);
        at += sizeof length;
        if (size - at < length)
            return problem_set(problem, PROBLEM_INVALID,
                "[request id: %s] incomplete string data for inference input '%s', expecting string of length %u but "
                "only %zu bytes available",
                parts_id(parts), input->name, length, size - at);
        at += length;
    }
    return true;
}

static bool set_shape(
    CallParts *parts, CallTensor *input, Slice datatype, const int64_t *shape, size_t dims, Problem *problem)
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
    int64_t *copy = arena_take(&parts->memory, (dims ? dims : 1) * sizeof *copy);
    if (copy == NULL)
        return problem_no_memory(problem);
    if (dims)
        memcpy(copy, shape, dims * sizeof *copy);
    input->shape = copy;
    input->dims = dims;
    parts_key_name(parts, KEY_INPUT, input->name);
    parts_key(parts, &input->datatype, sizeof input->datatype);
    parts_key(parts, &input->dims, sizeof input->dims);
    parts_key(parts, copy, dims * sizeof *copy);
    return true;
}

static CallTensor *add(CallParts *parts, Slice name, Problem *problem)
{
    uint64_t most = calls_settings_of(parts->calls)->inputs;
    if (parts->call.input_count >= most) {
        refusals_count(REFUSED_INPUTS);
        problem_set(problem, PROBLEM_TOO_LARGE, "the request has more than %llu inputs", (unsigned long long)most);
        return NULL;
    }
    const char *copy = parts_copy(parts, name, "the name of an input", problem);
    CallTensor *input =
        copy ? parts_add_tensor(&parts->call.inputs, &parts->call.input_count, &parts->input_room, copy) : NULL;
    if (copy && input == NULL)
        problem_no_memory(problem);
    return input;
}

CallTensor *call_input(Call *call, Slice name, Slice datatype, const int64_t *shape, size_t dims, Problem *problem)
{
    CallParts *parts = parts_of(call);
    if (!inputs_end(parts, problem))
        return NULL;
    CallTensor *input = add(parts, name, problem);
    if (input == NULL || !set_shape(parts, input, datatype, shape, dims, problem) ||
        !api_succeeded(triton.InferenceRequestAddInput(
                           parts->request, input->name, (int)input->datatype, input->shape, input->dims),
            problem))
        return NULL;
    parts->open = true;
    parts->input_elements = 0;
    return input;
}

static bool append(
    CallParts *parts, CallTensor *input, const void *bytes, size_t size, int memory, int64_t device, Problem *problem)
{
    uint64_t count = 0;
    /* Those in a GPU cannot be checked here. */
    if (input->datatype == TYPE_BYTES && memory != MEMORY_GPU &&
        !count_elements(parts, input, bytes, size, &count, problem))
        return false;
    if (memory == MEMORY_GPU)
        count = input->elements;
    parts->input_elements += count;
    input->given += size;
    if (memory != MEMORY_GPU)
        parts_key(parts, bytes, size);
    return api_succeeded(
        triton.InferenceRequestAppendInputData(parts->request, input->name, bytes, size, memory, device), problem);
}

static CallTensor *begun(CallParts *parts, Problem *problem)
{
    if (parts->open)
        return &parts->call.inputs[parts->call.input_count - 1];
    problem_set(problem, PROBLEM_INTERNAL, "data was given without an input");
    return NULL;
}

bool call_input_data(Call *call, const void *bytes, size_t size, Problem *problem)
{
    CallParts *parts = parts_of(call);
    CallTensor *input = begun(parts, problem);
    return input && append(parts, input, bytes, size, MEMORY_CPU, 0, problem);
}

bool call_input_region(Call *call, Slice region, uint64_t offset, uint64_t size, Problem *problem)
{
    CallParts *parts = parts_of(call);
    CallTensor *input = begun(parts, problem);
    if (input == NULL)
        return false;
    parts->key.used = false; /* its client may change it after its digest is computed and before the model reads it */
    input->region = shared_memory_find(calls_settings_of(parts->calls)->shared_memory, region, offset, size, problem);
    if (input->region == NULL)
        return false;
    bool cuda = shared_region_is_cuda(input->region);
    const void *bytes = (const char *)shared_region_base(input->region) + offset;
    if (input->datatype == TYPE_BYTES && !cuda) {
        /* Copy it: the client may change the original after the check. */
        void *copy = arena_take(&parts->memory, size);
        if (copy == NULL)
            return problem_no_memory(problem);
        bytes = memcpy(copy, bytes, size);
        if (!shared_region_is_whole(input->region, problem))
            return false;
    }
    return append(
        parts, input, bytes, size, cuda ? MEMORY_GPU : MEMORY_CPU, shared_region_device(input->region), problem);
}

bool call_input_raw(Call *call, const void *bytes, size_t size, Problem *problem)
{
    static const char name[] = "raw_input";
    CallParts *parts = parts_of(call);
    parts->raw = true;
    parts->key.used = false;
    return api_succeeded(triton.InferenceRequestAddRawInput(parts->request, name), problem) &&
        api_succeeded(
            triton.InferenceRequestAppendInputData(parts->request, name, bytes, size, MEMORY_CPU, 0), problem);
}

bool inputs_end(CallParts *parts, Problem *problem)
{
    if (!parts->open)
        return true;
    parts->open = false;
    const CallTensor *input = &parts->call.inputs[parts->call.input_count - 1];
    parts_key_name(parts, KEY_INPUT_END, "");
    parts_key(parts, &input->given, sizeof input->given);
    if (input->datatype == TYPE_BYTES && parts->input_elements > input->elements)
        return problem_set(problem, PROBLEM_INVALID,
            "[request id: %s] unexpected number of string elements %llu for inference input '%s' for model '%s', "
            "expecting %llu",
            parts_id(parts), (unsigned long long)parts->input_elements, input->name, parts->model,
            (unsigned long long)input->elements);
    if (input->datatype == TYPE_BYTES && parts->input_elements < input->elements)
        return problem_set(problem, PROBLEM_INVALID,
            "[request id: %s] expected %llu string elements for inference input '%s' for model '%s', got %llu",
            parts_id(parts), (unsigned long long)input->elements, input->name, parts->model,
            (unsigned long long)parts->input_elements);
    /* Untyped: the core applies the model's type. */
    bool is_sized = input->datatype != TYPE_BYTES && input->datatype != TYPE_INVALID;
    if (is_sized && input->given != input->expected)
        return problem_set(problem, PROBLEM_INVALID,
            "[request id: %s] input byte size mismatch for input '%s' for model '%s'. Expected %llu, got %llu",
            parts_id(parts), input->name, parts->model, (unsigned long long)input->expected,
            (unsigned long long)input->given);
    return true;
}
