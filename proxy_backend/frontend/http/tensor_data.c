#include "http/bodies.h"

#include "json/numbers.h"
#include "common/json_writer.h"
#include "net/limits.h"

#include <float.h>
#include <math.h>

/* Returns true if the values of a datatype are numbers or booleans in JSON. */
static bool is_number_in_json(DataType datatype)
{
    switch (datatype) {
    case TYPE_BOOL:
    case TYPE_UINT8:
    case TYPE_UINT16:
    case TYPE_UINT32:
    case TYPE_UINT64:
    case TYPE_INT8:
    case TYPE_INT16:
    case TYPE_INT32:
    case TYPE_INT64:
    case TYPE_FP32:
    case TYPE_FP64:
        return true;
    default:
        return false;
    }
}

/* ── reading ──────────────────────────────────────────────────────────────────────────────────────── */

static bool wrong_shape(Problem *problem)
{
    return problem_set(
        problem, PROBLEM_INVALID, "Unable to parse 'data': Shape does not match true shape of 'data' field");
}

/* Report that the next value has the wrong kind, unless the text itself is malformed. */
static bool wrong_kind(const Json *json, const char *is_not, const char *as, Problem *problem)
{
    return json_failed(json)
        ? false
        : problem_set(problem, PROBLEM_INVALID, "Unable to parse 'data': attempt to access JSON %s as %s", is_not, as);
}

static bool out_of_range(DataType datatype, Problem *problem)
{
    return problem_set(
        problem, PROBLEM_INVALID, "Unable to parse 'data': a value is out of the range of %s", datatype_name(datatype));
}

static bool read_signed(Json *json, DataType datatype, char *to, Problem *problem)
{
    int64_t value;
    if (!json_signed(json, &value))
        return wrong_kind(json, "non-signed-integer", "signed-integer", problem);
    size_t size = datatype_size(datatype);
    if (size < 8 && (value < -((int64_t)1 << (8 * size - 1)) || value >= (int64_t)1 << (8 * size - 1)))
        return out_of_range(datatype, problem);
    memcpy(to, &value, size); /* Little-endian, like all machines that the core supports. */
    return true;
}

static bool read_unsigned(Json *json, DataType datatype, char *to, Problem *problem)
{
    uint64_t value;
    if (!json_unsigned(json, &value))
        return wrong_kind(json, "non-unsigned-integer", "unsigned-integer", problem);
    size_t size = datatype_size(datatype);
    if (size < 8 && value >> (8 * size))
        return out_of_range(datatype, problem);
    memcpy(to, &value, size);
    return true;
}

static bool read_decimal(Json *json, DataType datatype, char *to, Problem *problem)
{
    double value;
    if (!json_double(json, &value))
        return wrong_kind(json, "non-number", "double", problem);
    if (datatype == TYPE_FP64) {
        memcpy(to, &value, sizeof value);
        return true;
    }
    /* Refuse values that no float can represent, except infinity itself: they would silently become infinity. */
    if (isfinite(value) && fabs(value) >= (double)FLT_MAX * (1 + 0x1p-25))
        return out_of_range(datatype, problem);
    float small = (float)value;
    memcpy(to, &small, sizeof small);
    return true;
}

static bool read_bool(Json *json, char *to, Problem *problem)
{
    bool value;
    if (!json_bool(json, &value))
        return wrong_kind(json, "non-boolean", "boolean", problem);
    *to = value;
    return true;
}

/* `is_number_in_json(datatype)` is true. */
static bool read_fixed(Json *json, DataType datatype, char *to, Problem *problem)
{
    switch (datatype) {
    case TYPE_BOOL:
        return read_bool(json, to, problem);
    case TYPE_FP32:
    case TYPE_FP64:
        return read_decimal(json, datatype, to, problem);
    case TYPE_UINT8:
    case TYPE_UINT16:
    case TYPE_UINT32:
    case TYPE_UINT64:
        return read_unsigned(json, datatype, to, problem);
    default: /* a signed integer */
        return read_signed(json, datatype, to, problem);
    }
}

/* Go to the next value. Returns false after the last one. With `alone`, there is only one value outside an array, and
 * `*first` is true until it has been read.
 */
static bool next_value(Json *json, uint32_t depth, bool alone, bool *first)
{
    if (!alone)
        return json_leaf(json, depth);
    bool more = *first;
    *first = false;
    return more;
}

static bool read_numbers(Call *call, const CallTensor *input, Json *json, bool alone, Problem *problem)
{
    uint32_t depth = json->depth;
    size_t size = datatype_size(input->datatype);
    /* Each value needs at least two bytes of JSON: do not allocate memory because of a large shape. */
    if (input->elements > (uint64_t)(json->end - json->at))
        return wrong_shape(problem);
    char *data = call_memory(call, (size_t)input->elements * size + 1), *at = data;
    if (data == NULL)
        return problem_no_memory(problem);
    bool first = true;
    if (!alone)
        json_array(json);
    uint64_t count = 0;
    for (; next_value(json, depth, alone, &first); count++, at += size) {
        if (count == input->elements)
            return wrong_shape(problem);
        if (!read_fixed(json, input->datatype, at, problem))
            return false;
    }
    if (json_failed(json))
        return false;
    return count == input->elements ? call_input_data(call, data, (size_t)(at - data), problem) : wrong_shape(problem);
}

static bool read_strings(Call *call, const CallTensor *input, Json *json, bool alone, Problem *problem)
{
    uint32_t depth = json->depth;
    /* A string is not longer than its JSON. The 4 bytes for its size must be added; its quotes and the comma need at
     * least 3.
     */
    Json measured = *json;
    Slice raw;
    if (!json_raw(&measured, &raw)) {
        *json = measured;
        return false;
    }
    if (input->elements > raw.size)
        return wrong_shape(problem);
    Buffer text = {.room = raw.size + (size_t)input->elements * 4 + 1};
    text.data = call_memory(call, text.room);
    if (text.data == NULL)
        return problem_no_memory(problem);
    bool first = true;
    if (!alone)
        json_array(json);
    uint64_t count = 0;
    for (; next_value(json, depth, alone, &first); count++) {
        if (count == input->elements)
            return wrong_shape(problem);
        size_t begin = text.size;
        text.size += 4;
        if (!json_string_to(json, &text))
            return json_failed(json)
                ? false
                : problem_set(problem, PROBLEM_INVALID,
                      "Unable to parse JSON bytes array: attempt to access JSON non-string as string");
        uint32_t size = (uint32_t)(text.size - begin - 4);
        memcpy(text.data + begin, &size, sizeof size);
    }
    if (json_failed(json))
        return false;
    return count == input->elements ? call_input_data(call, text.data, text.size, problem) : wrong_shape(problem);
}

bool tensor_read(Call *call, const CallTensor *input, Json *json, bool alone, Problem *problem)
{
    if (input->datatype == TYPE_INVALID)
        return problem_set(problem, PROBLEM_INVALID, "invalid datatype for input %s", input->name);
    if (input->datatype != TYPE_BYTES && !is_number_in_json(input->datatype))
        return problem_set(problem, PROBLEM_INVALID,
            "receiving %s data via JSON is not supported. Please use the binary data format for input %s",
            datatype_name(input->datatype), input->name);
    JsonKind kind = json_kind(json);
    if (kind != JSON_ARRAY && !alone)
        return wrong_kind(json, "non-array", "array", problem);
    alone = kind != JSON_ARRAY;
    return input->datatype == TYPE_BYTES ? read_strings(call, input, json, alone, problem)
                                         : read_numbers(call, input, json, alone, problem);
}

uint64_t tensor_count(Json json)
{
    uint32_t depth = json.depth;
    if (!json_array(&json))
        return 1;
    uint64_t count = 0;
    while (json_leaf(&json, depth) && json_skip(&json))
        count++;
    return count;
}

/* ── parameters ───────────────────────────────────────────────────────────────────────────────────── */

void json_count_refusal(const Json *json)
{
    if (json->fault_kind != PROBLEM_TOO_LARGE)
        refusals_count(REFUSED_MALFORMED);
    else
        refusals_count(json->depth >= json->limits.depth ? REFUSED_JSON_DEPTH : REFUSED_JSON_VALUES);
}

bool parameter_read(Call *call, Slice name, Json *json, Problem *problem)
{
    CallParameter value = {.type = PARAMETER_STRING};
    Buffer scratch = {0};
    switch (json_kind(json)) {
    case JSON_STRING:
        json_string(json, &scratch, &value.string);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        value.type = PARAMETER_BOOL;
        json_bool(json, &value.boolean);
        break;
    case JSON_NUMBER:
        value.type = PARAMETER_INT;
        if (json_signed(json, &value.integer))
            break;
        value.type = PARAMETER_UNSIGNED;
        if (json_unsigned(json, &value.natural))
            break;
        value.type = PARAMETER_DOUBLE;
        json_double(json, &value.number);
        break;
    default:
        if (!json_failed(json))
            problem_set(problem, PROBLEM_INVALID,
                "parameter '%.*s' has invalid type. It should be either 'int', 'bool', or 'string'.",
                name.size < 200 ? (int)name.size : 200, name.start);
    }
    bool taken = problem->kind == PROBLEM_NONE && !json_failed(json) && call_parameter(call, name, &value, problem);
    buffer_free(&scratch);
    return taken;
}

void response_head_write(Buffer *text, const CallResponse *response)
{
    buffer_put_char(text, '{');
    if (response->id && *response->id) {
        buffer_put_string(text, "\"id\":");
        json_put_sanitized(text, slice_of(response->id));
        buffer_put_char(text, ',');
    }
    buffer_put_string(text, "\"model_name\":");
    json_put_sanitized(text, slice_of(response->model));
    buffer_put_string(text, ",\"model_version\":\"");
    buffer_put_signed(text, response->version);
    buffer_put_char(text, '"');
}

void parameters_write(Buffer *text, const CallResponse *response)
{
    for (size_t i = 0; i < response->parameter_count; i++) {
        const ResponseParameter *parameter = &response->parameters[i];
        if (i)
            buffer_put_char(text, ',');
        json_put_sanitized(text, slice_of(parameter->name));
        buffer_put_char(text, ':');
        if (parameter->type == PARAMETER_INT)
            buffer_put_signed(text, parameter->integer);
        else if (parameter->type == PARAMETER_BOOL)
            buffer_put_string(text, parameter->boolean ? "true" : "false");
        else if (parameter->type == PARAMETER_DOUBLE)
            number_put_double(text, parameter->number);
        else
            json_put_sanitized(text, slice_of(parameter->string));
    }
}

/* ── writing ──────────────────────────────────────────────────────────────────────────────────────── */

/* `is_number_in_json(datatype)` is true. */
static void write_number(Buffer *text, DataType datatype, const char *from)
{
    union {
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        float f32;
        double f64;
    } value;
    memcpy(&value, from, datatype_size(datatype));
    switch (datatype) {
    case TYPE_BOOL:
        buffer_put_string(text, value.u8 ? "true" : "false");
        return;
    case TYPE_UINT8:
        buffer_put_unsigned(text, value.u8);
        return;
    case TYPE_UINT16:
        buffer_put_unsigned(text, value.u16);
        return;
    case TYPE_UINT32:
        buffer_put_unsigned(text, value.u32);
        return;
    case TYPE_UINT64:
        buffer_put_unsigned(text, value.u64);
        return;
    case TYPE_INT8:
        buffer_put_signed(text, value.i8);
        return;
    case TYPE_INT16:
        buffer_put_signed(text, value.i16);
        return;
    case TYPE_INT32:
        buffer_put_signed(text, value.i32);
        return;
    case TYPE_INT64:
        buffer_put_signed(text, value.i64);
        return;
    case TYPE_FP32:
        number_put_float(text, value.f32);
        return;
    default: /* FP64 */
        number_put_double(text, value.f64);
    }
}

static bool write_strings(const ResponseOutput *output, Buffer *text, Problem *problem)
{
    const char *at = output->bytes, *end = at + output->size;
    for (uint64_t i = 0; i < output->elements; i++) {
        uint32_t size;
        if ((size_t)(end - at) < sizeof size)
            return problem_set(
                problem, PROBLEM_INTERNAL, "output '%s' has fewer elements than its shape requires", output->name);
        memcpy(&size, at, sizeof size);
        at += sizeof size;
        if ((size_t)(end - at) < size)
            return problem_set(problem, PROBLEM_INTERNAL, "an element of output '%s' is truncated", output->name);
        if (i)
            buffer_put_char(text, ',');
        if (!json_put_string(text, (Slice){at, size}))
            return problem_set(problem, PROBLEM_INVALID,
                "output '%s' is not valid UTF-8, so it cannot be sent as JSON: request it with \"binary_data\": true",
                output->name);
        at += size;
    }
    return true;
}

bool tensor_write(const ResponseOutput *output, Buffer *text, Problem *problem)
{
    if (output->datatype == TYPE_BYTES)
        return write_strings(output, text, problem);
    if (output->datatype != TYPE_INVALID && !is_number_in_json(output->datatype))
        return problem_set(problem, PROBLEM_INVALID,
            "sending %s data via JSON is not supported. Please use the binary data format for output %s",
            datatype_name(output->datatype), output->name);
    size_t size = datatype_size(output->datatype);
    if (size == 0 || output->elements > output->size / size)
        return problem_set(problem, PROBLEM_INTERNAL, "output '%s' is smaller than its shape requires", output->name);
    const char *at = output->bytes;
    for (uint64_t i = 0; i < output->elements; i++, at += size) {
        if (i)
            buffer_put_char(text, ',');
        write_number(text, output->datatype, at);
    }
    return true;
}
