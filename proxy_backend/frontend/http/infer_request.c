/* Reads the JSON of an inference request. Members may come in any order: an input is begun when its name, type and
 * shape are known. If "data" comes before them, it is skipped and read later.
 */
#include "http/bodies.h"

#include <stdlib.h>

enum { MAX_DIMS = 64 };

/* The state of reading a request. */
typedef struct {
    Call *call;
    Json json;
    Slice binary; /* the binary data that has not been used */
    Problem *problem;
    bool binary_output;
    Buffer key, text; /* reused for names and texts with escapes */
} Reading;

/* The "parameters" of an input or output that concern the protocol. */
typedef struct {
    bool has_size, has_region, has_room, has_binary, binary;
    uint64_t size, offset, room;
    bool has_classes;
    int64_t classes;
    Buffer region;
} TensorParameters;

/* The description of an input, as it is being read. */
typedef struct {
    Buffer name, datatype; /* `room` is 0 before they are read */
    bool has_name, has_datatype, has_shape, has_data, was_read;
    int64_t shape[MAX_DIMS];
    size_t dims;
    Json data; /* positioned at "data" if that was skipped */
    CallTensor *tensor;
    TensorParameters parameters;
} Input;

static bool invalid(Reading *reading, const char *member, const char *what)
{
    return json_failed(&reading->json)
        ? false
        : problem_set(reading->problem, PROBLEM_INVALID, "Unable to parse '%s': %s", member, what);
}

static bool read_flag(Reading *reading, const char *member, bool *value)
{
    return json_bool(&reading->json, value) ||
        invalid(reading, member, "attempt to access JSON non-boolean as boolean");
}

static bool read_count(Reading *reading, const char *member, uint64_t *value)
{
    return json_unsigned(&reading->json, value) ||
        invalid(reading, member, "attempt to access JSON non-unsigned-integer as unsigned-integer");
}

static bool read_text(Reading *reading, const char *member, Slice *value)
{
    return json_string(&reading->json, &reading->text, value) ||
        invalid(reading, member, "attempt to access JSON non-string as string");
}

/* Read a text into a separate buffer, since several texts are needed at the same time. */
static bool read_copy(Reading *reading, const char *member, Buffer *copy)
{
    Slice value;
    buffer_clear(copy);
    if (!read_text(reading, member, &value))
        return false;
    buffer_put_slice(copy, value);
    return buffer_string(copy) != NULL || problem_no_memory(reading->problem);
}

static bool set_duplicate(Reading *reading, const char *member)
{
    return problem_set(reading->problem, PROBLEM_INVALID, "Unable to parse '%s': it occurs twice", member);
}

/* Read the name of the next member. Returns false at the end of the object, or with a problem. */
static bool next_member(Reading *reading, Slice *key)
{
    return reading->problem->kind == PROBLEM_NONE && json_member(&reading->json, &reading->key, key);
}

static bool next_element(Reading *reading)
{
    return reading->problem->kind == PROBLEM_NONE && json_element(&reading->json);
}

static bool is_good(const Reading *reading)
{
    return reading->problem->kind == PROBLEM_NONE && !json_failed(&reading->json);
}

/* ── parameters ───────────────────────────────────────────────────────────────────────────────────── */

static bool read_parameters(Reading *reading)
{
    Slice key;
    if (!json_object(&reading->json))
        return json_failed(&reading->json)
            ? false
            : problem_set(reading->problem, PROBLEM_INVALID,
                  "failed to get request params.: attempt to get members for non-object");
    while (next_member(reading, &key))
        if (slice_is(key, "binary_data_output"))
            read_flag(reading, "binary_data_output", &reading->binary_output);
        else
            parameter_read(reading->call, key, &reading->json, reading->problem);
    return is_good(reading);
}

/* Read a parameter of an input or output. Unknown ones are ignored, as in Triton. */
static void read_tensor_parameter(Reading *reading, Slice key, TensorParameters *parameters)
{
    uint64_t classes;
    if (slice_is(key, "binary_data_size")) {
        parameters->has_size = read_count(reading, "binary_data_size", &parameters->size);
    } else if (slice_is(key, "binary_data")) {
        parameters->has_binary = read_flag(reading, "binary_data", &parameters->binary);
    } else if (slice_is(key, "classification")) {
        parameters->has_classes = read_count(reading, "classification", &classes);
        parameters->classes = classes <= INT64_MAX ? (int64_t)classes : INT64_MAX;
    } else if (slice_is(key, "shared_memory_region")) {
        parameters->has_region = read_copy(reading, "shared_memory_region", &parameters->region);
    } else if (slice_is(key, "shared_memory_offset")) {
        read_count(reading, "shared_memory_offset", &parameters->offset);
    } else if (slice_is(key, "shared_memory_byte_size")) {
        parameters->has_room = read_count(reading, "shared_memory_byte_size", &parameters->room);
    } else {
        json_skip(&reading->json);
    }
}

static bool read_tensor_parameters(Reading *reading, TensorParameters *parameters)
{
    Slice key;
    if (!json_object(&reading->json))
        return invalid(reading, "parameters", "attempt to get members for non-object");
    while (next_member(reading, &key))
        read_tensor_parameter(reading, key, parameters);
    if (is_good(reading) && parameters->has_region && !parameters->has_room)
        return problem_set(reading->problem, PROBLEM_INVALID, "'shared_memory_region' needs 'shared_memory_byte_size'");
    return is_good(reading);
}

/* ── inputs ───────────────────────────────────────────────────────────────────────────────────────── */

static bool read_shape(Reading *reading, Input *input)
{
    if (input->has_shape)
        return set_duplicate(reading, "shape");
    if (!json_array(&reading->json))
        return invalid(reading, "shape", "attempt to access JSON non-array as array");
    while (next_element(reading)) {
        uint64_t dim;
        if (!read_count(reading, "shape", &dim))
            return false;
        if (input->dims == MAX_DIMS || dim > INT64_MAX)
            return invalid(reading, "shape", dim > INT64_MAX ? "a dimension is too large" : "more than 64 dimensions");
        input->shape[input->dims++] = (int64_t)dim;
    }
    input->has_shape = true;
    return is_good(reading);
}

static bool begin_input(Reading *reading, Input *input)
{
    const char *missing = !input->has_name ? "name" : !input->has_shape ? "shape" : "datatype";
    if (!input->has_name || !input->has_shape || !input->has_datatype)
        return problem_set(reading->problem, PROBLEM_INVALID,
            "Unable to parse '%s': attempt to access non-existing object member '%s'", missing, missing);
    input->tensor = call_input(reading->call, buffer_slice(&input->name), buffer_slice(&input->datatype), input->shape,
        input->dims, reading->problem);
    return input->tensor != NULL;
}

static bool read_data(Reading *reading, Input *input)
{
    if (input->has_data)
        return set_duplicate(reading, "data");
    input->has_data = true;
    if (input->has_name && input->has_shape && input->has_datatype) {
        input->was_read = true;
        return begin_input(reading, input) &&
            tensor_read(reading->call, input->tensor, &reading->json, false, reading->problem);
    }
    input->data = reading->json;
    return json_skip(&reading->json);
}

static bool read_name(Reading *reading, const char *member, Buffer *name, bool *has)
{
    if (*has)
        return set_duplicate(reading, member);
    return *has = read_copy(reading, member, name);
}

static bool read_input_member(Reading *reading, Slice key, Input *input)
{
    if (slice_is(key, "name"))
        return read_name(reading, "name", &input->name, &input->has_name);
    if (slice_is(key, "datatype"))
        return read_name(reading, "datatype", &input->datatype, &input->has_datatype);
    if (slice_is(key, "shape"))
        return read_shape(reading, input);
    if (slice_is(key, "parameters"))
        return read_tensor_parameters(reading, &input->parameters);
    return slice_is(key, "data") ? read_data(reading, input) : json_skip(&reading->json);
}

/* Add the data of an input from where it is: JSON, binary data, or shared memory. */
static bool end_input(Reading *reading, Input *input)
{
    const TensorParameters *parameters = &input->parameters;
    Problem *problem = reading->problem;
    if (input->has_data + parameters->has_size + parameters->has_region != 1) {
        bool any = input->has_data || parameters->has_size || parameters->has_region;
        return problem_set(problem, PROBLEM_INVALID,
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But %s%s%s%s",
            any ? "set" : "no field is set", input->has_data ? " 'data'" : "",
            parameters->has_size ? " 'binary_data_size'" : "", parameters->has_region ? " 'shared_memory_region'" : "");
    }
    if (input->tensor == NULL && !begin_input(reading, input))
        return false;
    if (input->has_data) {
        if (input->was_read)
            return true;
        if (tensor_read(reading->call, input->tensor, &input->data, false, problem))
            return true;
        return problem->kind == PROBLEM_NONE
            ? json_problem(&input->data, "failed to parse the request JSON buffer", problem)
            : false;
    }
    if (parameters->has_region)
        return call_input_region(
            reading->call, buffer_slice(&parameters->region), parameters->offset, parameters->room, problem);
    if (parameters->size > reading->binary.size)
        return problem_set(problem, PROBLEM_INVALID,
            "unexpected size for input '%s', expecting %llu additional bytes: is Inference-Header-Content-Length "
            "right?",
            input->tensor->name, (unsigned long long)(parameters->size - reading->binary.size));
    Slice data = {reading->binary.start, (size_t)parameters->size};
    reading->binary = slice_after(reading->binary, data.size);
    return call_input_data(reading->call, data.start, data.size, problem);
}

static void free_input(Input *input)
{
    buffer_free(&input->name);
    buffer_free(&input->datatype);
    buffer_free(&input->parameters.region);
}

static bool read_inputs(Reading *reading)
{
    if (!json_array(&reading->json))
        return invalid(reading, "inputs", "attempt to access JSON non-array as array");
    Input input = {0};
    while (next_element(reading)) {
        Buffer name = input.name, datatype = input.datatype, region = input.parameters.region;
        input = (Input){.name = name, .datatype = datatype, .parameters.region = region};
        Slice key;
        if (!json_object(&reading->json)) {
            invalid(reading, "inputs", "an element is not an object");
            break;
        }
        while (next_member(reading, &key) && read_input_member(reading, key, &input))
            ;
        if (!is_good(reading) || !end_input(reading, &input))
            break;
    }
    free_input(&input);
    return is_good(reading);
}

/* ── outputs ──────────────────────────────────────────────────────────────────────────────────────── */

static bool end_output(Reading *reading, const Buffer *name, bool has_name, const TensorParameters *parameters)
{
    Problem *problem = reading->problem;
    if (!has_name)
        return problem_set(
            problem, PROBLEM_INVALID, "Unable to parse 'name': attempt to access non-existing object member 'name'");
    if (parameters->has_region && parameters->binary)
        return problem_set(problem, PROBLEM_INVALID, "Output can't set both 'shared_memory_region' and 'binary_data'");
    CallTensor *output = call_output(reading->call, buffer_slice(name), problem);
    if (output == NULL)
        return false;
    if (parameters->has_binary)
        output->flags |= parameters->binary ? OUTPUT_BINARY : OUTPUT_JSON;
    if (parameters->has_classes && parameters->classes > 0 &&
        !call_output_classes(reading->call, output, parameters->classes, problem))
        return false;
    if (!parameters->has_region)
        return true;
    Slice region = buffer_slice(&parameters->region);
    char *kept = call_memory(reading->call, region.size + 1);
    if (kept == NULL)
        return problem_no_memory(problem);
    /* Includes the NUL that buffer_string has appended. */
    output->user = memcpy(kept, parameters->region.data, region.size + 1);
    return call_output_region(reading->call, output, region, parameters->offset, parameters->room, problem);
}

static bool read_output(Reading *reading, Buffer *name, TensorParameters *parameters)
{
    bool has_name = false;
    Slice key;
    if (!json_object(&reading->json))
        return invalid(reading, "outputs", "an element is not an object");
    while (next_member(reading, &key))
        if (slice_is(key, "name"))
            read_name(reading, "name", name, &has_name);
        else if (slice_is(key, "parameters"))
            read_tensor_parameters(reading, parameters);
        else
            json_skip(&reading->json);
    return is_good(reading) && end_output(reading, name, has_name, parameters);
}

static bool read_outputs(Reading *reading)
{
    if (!json_array(&reading->json))
        return invalid(reading, "outputs", "attempt to access JSON non-array as array");
    Buffer name = {0}, region = {0};
    while (next_element(reading)) {
        TensorParameters parameters = {.region = region};
        bool read = read_output(reading, &name, &parameters);
        region = parameters.region;
        if (!read)
            break;
    }
    buffer_free(&name);
    buffer_free(&region);
    return is_good(reading);
}

/* ── all of it ────────────────────────────────────────────────────────────────────────────────────── */

static bool read_members(Reading *reading)
{
    bool has_id = false, has_inputs = false, has_outputs = false, has_parameters = false;
    Slice key, id;
    while (next_member(reading, &key)) {
        bool *has = slice_is(key, "id")   ? &has_id
            : slice_is(key, "inputs")     ? &has_inputs
            : slice_is(key, "outputs")    ? &has_outputs
            : slice_is(key, "parameters") ? &has_parameters
                                          : NULL;
        if (has && *has)
            return problem_set(
                reading->problem, PROBLEM_INVALID, "Unable to parse the request: '%.*s' occurs twice", SLICE_ARGS(key));
        if (has == &has_id) {
            if (read_text(reading, "id", &id))
                call_id(reading->call, id, reading->problem);
        } else if (has == &has_inputs) {
            read_inputs(reading);
        } else if (has == &has_outputs) {
            read_outputs(reading);
        } else if (has == &has_parameters) {
            read_parameters(reading);
        } else {
            json_skip(&reading->json);
        }
        if (has)
            *has = true;
    }
    if (is_good(reading) && json_end(&reading->json) && !has_inputs)
        return problem_set(reading->problem, PROBLEM_INVALID,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'");
    return is_good(reading);
}

bool http_infer_read(Call *call, Slice json, Slice binary, const Limits *limits, bool *binary_output, Problem *problem)
{
    JsonLimits most = {(uint32_t)limits->json_depth, limits->json_values, UINT64_MAX};
    Reading reading = {.call = call, .binary = binary, .problem = problem};
    reading.json = json_read(json, &most);
    bool read = json_object(&reading.json);
    if (!read && !json_failed(&reading.json) && json_skip(&reading.json))
        problem_set(problem, PROBLEM_INVALID,
            "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'");
    read = read && read_members(&reading);
    if (problem->kind == PROBLEM_NONE && json_failed(&reading.json)) {
        json_count_refusal(&reading.json);
        read = json_problem(&reading.json, "failed to parse the request JSON buffer", problem);
    }
    if (read && reading.binary.size)
        read = problem_set(problem, PROBLEM_INVALID,
            "unexpected additional input data: %zu bytes are left after the last input", reading.binary.size);
    buffer_free(&reading.key);
    buffer_free(&reading.text);
    *binary_output = reading.binary_output;
    return read && problem->kind == PROBLEM_NONE;
}
