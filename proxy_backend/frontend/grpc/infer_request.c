#include "grpc/infer.h"
#include "net/limits.h"
#include "protobuf/messages.h"

enum { MAX_DIMS = 64 };

/* The texts of a request, and the number of inputs in raw_input_contents. */
typedef struct {
    Slice model, version, id;
    size_t raw;
} Named;

static bool read_names(Slice message, Named *named, Problem *problem)
{
    ProtoReader reader = proto_reader(&MODEL_INFER_REQUEST, message);
    ProtoValue value;
    ProtoNext next;
    *named = (Named){.model = SLICE(""), .version = SLICE(""), .id = SLICE("")};
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == MODEL_INFER_REQUEST_model_name)
            named->model = value.bytes;
        else if (value.field->number == MODEL_INFER_REQUEST_model_version)
            named->version = value.bytes;
        else if (value.field->number == MODEL_INFER_REQUEST_id)
            named->id = value.bytes;
        else if (value.field->number == MODEL_INFER_REQUEST_raw_input_contents)
            named->raw++;
    }
    return next == PROTO_END;
}

/* Read the value in a parameter map. If several choices are set, the last one counts. `type` is -1 if there is none. */
static bool read_parameter(Slice message, CallParameter *parameter, Problem *problem)
{
    ProtoReader reader = proto_reader(&INFER_PARAMETER, message);
    ProtoValue value;
    ProtoNext next;
    parameter->type = -1;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        switch (value.field->number) {
        case INFER_PARAMETER_bool_param:
            *parameter = (CallParameter){.type = PARAMETER_BOOL, .boolean = value.number != 0};
            break;
        case INFER_PARAMETER_int64_param:
            *parameter = (CallParameter){.type = PARAMETER_INT, .integer = (int64_t)value.number};
            break;
        case INFER_PARAMETER_uint64_param:
            *parameter = value.number > INT64_MAX
                ? (CallParameter){.type = PARAMETER_UNSIGNED, .natural = value.number}
                : (CallParameter){.type = PARAMETER_INT, .integer = (int64_t)value.number};
            break;
        case INFER_PARAMETER_string_param:
            *parameter = (CallParameter){.type = PARAMETER_STRING, .string = value.bytes};
            break;
        default:
            *parameter = (CallParameter){.type = PARAMETER_DOUBLE, .number = proto_double(value.number)};
        }
    }
    return next == PROTO_END;
}

/* Read an entry of a parameter map. Requests, inputs and outputs have the same format. */
static bool read_entry(const ProtoMessage *message, Slice entry, Slice *key, CallParameter *parameter, Problem *problem)
{
    ProtoReader reader = proto_reader(message, entry);
    ProtoValue value;
    ProtoNext next;
    *key = SLICE("");
    parameter->type = -1;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == 1)
            *key = value.bytes;
        else if (!read_parameter(value.bytes, parameter, problem))
            return false;
    }
    if (next == PROTO_END && parameter->type < 0)
        return problem_set(problem, PROBLEM_INVALID, "the parameter '%.*s' has no value", SLICE_ARGS(*key));
    return next == PROTO_END;
}

static bool read_request_parameter(Call *call, Slice entry, InferOptions *options, Problem *problem)
{
    Slice name;
    CallParameter parameter;
    if (!read_entry(&MODEL_INFER_REQUEST_PARAMETERS_ENTRY, entry, &name, &parameter, problem))
        return false;
    if (!slice_is(name, "triton_enable_empty_final_response"))
        return call_parameter(call, name, &parameter, problem);
    if (parameter.type != PARAMETER_BOOL)
        return problem_set(problem, PROBLEM_INVALID,
            "invalid value type for 'triton_enable_empty_final_response' parameter, expected bool_param.");
    options->empty_final = parameter.boolean;
    return true;
}

/* The parameters of an input or output that concern the protocol. */
typedef struct {
    Slice region; /* absent if it is not in shared memory */
    int64_t offset, size;
    bool has_size, has_classes;
    int64_t classes;
} Place;

static bool read_place(const ProtoMessage *message, Slice entry, Place *place, Problem *problem)
{
    Slice name;
    CallParameter parameter;
    if (!read_entry(message, entry, &name, &parameter, problem))
        return false;
    bool is_region = slice_is(name, "shared_memory_region");
    bool is_offset = slice_is(name, "shared_memory_offset"), is_size = slice_is(name, "shared_memory_byte_size");
    bool is_classes = slice_is(name, "classification") &&
        message == &MODEL_INFER_REQUEST_INFER_REQUESTED_OUTPUT_TENSOR_PARAMETERS_ENTRY;
    if (!is_region && !is_offset && !is_size && !is_classes)
        return true; /* Ignore others, such as "binary_data", which is for HTTP. */
    if (parameter.type != (is_region ? PARAMETER_STRING : PARAMETER_INT))
        return problem_set(problem, PROBLEM_INVALID, "invalid value type for '%.*s' parameter, expected %s",
            SLICE_ARGS(name), is_region ? "string_param" : "int64_param");
    if (is_classes && parameter.integer <= 0)
        return problem_set(problem, PROBLEM_INVALID, "invalid value for 'classification' parameter, expected >= 0");
    if ((is_offset || is_size) && parameter.integer < 0)
        return problem_set(problem, PROBLEM_INVALID, "the parameter '%.*s' is negative", SLICE_ARGS(name));
    if (is_region)
        place->region = parameter.string;
    else if (is_offset)
        place->offset = parameter.integer;
    else if (is_classes)
        place->classes = parameter.integer;
    else
        place->size = parameter.integer;
    place->has_size |= is_size;
    place->has_classes |= is_classes;
    return true;
}

static bool check_place(const Place *place, Slice name, Problem *problem)
{
    if (place->has_size && place->region.start == NULL)
        return problem_set(problem, PROBLEM_INVALID,
            "'shared_memory_byte_size' can not be specified without 'shared_memory_region' parameter for tensor '%.*s'",
            SLICE_ARGS(name));
    if (place->region.start == NULL || place->has_size)
        return true;
    return problem_set(problem, PROBLEM_INVALID,
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor '%.*s'",
        SLICE_ARGS(name));
}

/* The description of an input or output. */
typedef struct {
    Slice name, datatype, contents; /* may be absent */
    int64_t shape[MAX_DIMS];
    size_t dims;
    Place place;
} Tensor;

static bool add_dim(Tensor *tensor, uint64_t number, Problem *problem)
{
    if (tensor->dims == MAX_DIMS)
        return problem_set(problem, PROBLEM_INVALID, "an input has more than %d dimensions", MAX_DIMS);
    tensor->shape[tensor->dims++] = (int64_t)number;
    return true;
}

static bool read_shape(Tensor *tensor, ProtoValue *value, Problem *problem)
{
    uint64_t number = value->number;
    ProtoNext next;
    if (!value->packed)
        return add_dim(tensor, number, problem);
    while ((next = proto_next_packed(PROTO_INT64, &value->bytes, &number)) == PROTO_FOUND)
        if (!add_dim(tensor, number, problem))
            return false;
    return next == PROTO_END || problem_set(problem, PROBLEM_INVALID, "the shape of an input is truncated");
}

static bool read_input_tensor(Slice message, Tensor *tensor, Problem *problem)
{
    ProtoReader reader = proto_reader(&MODEL_INFER_REQUEST_INFER_INPUT_TENSOR, message);
    ProtoValue value;
    ProtoNext next;
    bool fine = true;
    *tensor = (Tensor){.name = SLICE(""), .datatype = SLICE("")};
    while (fine && (next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        switch (value.field->number) {
        case MODEL_INFER_REQUEST_INFER_INPUT_TENSOR_name:
            tensor->name = value.bytes;
            break;
        case MODEL_INFER_REQUEST_INFER_INPUT_TENSOR_datatype:
            tensor->datatype = value.bytes;
            break;
        case MODEL_INFER_REQUEST_INFER_INPUT_TENSOR_shape:
            fine = read_shape(tensor, &value, problem);
            break;
        case MODEL_INFER_REQUEST_INFER_INPUT_TENSOR_parameters:
            fine = read_place(
                &MODEL_INFER_REQUEST_INFER_INPUT_TENSOR_PARAMETERS_ENTRY, value.bytes, &tensor->place, problem);
            break;
        default:
            tensor->contents = value.bytes;
        }
    }
    return fine && next == PROTO_END && check_place(&tensor->place, tensor->name, problem);
}

/* Read the next element of raw_input_contents. */
static bool next_raw(ProtoReader *raw, Slice *bytes, Problem *problem)
{
    ProtoValue value;
    while (proto_next(raw, &value, problem) == PROTO_FOUND)
        if (value.field->number == MODEL_INFER_REQUEST_raw_input_contents) {
            *bytes = value.bytes;
            return true;
        }
    return false;
}

static bool read_input(Call *call, Slice message, ProtoReader *raw, size_t *raw_left, bool has_raw, Problem *problem)
{
    Tensor tensor;
    Slice bytes;
    if (!read_input_tensor(message, &tensor, problem))
        return false;
    CallTensor *input = call_input(call, tensor.name, tensor.datatype, tensor.shape, tensor.dims, problem);
    if (input == NULL)
        return false;
    if (tensor.contents.start && (has_raw || tensor.place.region.start))
        return problem_set(problem, PROBLEM_INVALID,
            "the contents of input '%s' are given twice: in the field 'contents' and %s", input->name,
            has_raw ? "in raw_input_contents" : "in shared memory");
    if (tensor.place.region.start)
        return call_input_region(
            call, tensor.place.region, (uint64_t)tensor.place.offset, (uint64_t)tensor.place.size, problem);
    if (tensor.contents.start)
        return infer_read_contents(call, input, tensor.contents, problem);
    if (!has_raw)
        return true; /* The input is empty, or the call will report that data is missing. */
    if (*raw_left == 0 || !next_raw(raw, &bytes, problem))
        return problem_set(problem, PROBLEM_INVALID, "raw_input_contents has no element for input '%s'", input->name);
    --*raw_left;
    return call_input_data(call, bytes.start, bytes.size, problem);
}

static bool read_output(Call *call, Slice message, Problem *problem)
{
    ProtoReader reader = proto_reader(&MODEL_INFER_REQUEST_INFER_REQUESTED_OUTPUT_TENSOR, message);
    ProtoValue value;
    ProtoNext next;
    Slice name = SLICE("");
    Place place = {0};
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == MODEL_INFER_REQUEST_INFER_REQUESTED_OUTPUT_TENSOR_name)
            name = value.bytes;
        else if (!read_place(
                     &MODEL_INFER_REQUEST_INFER_REQUESTED_OUTPUT_TENSOR_PARAMETERS_ENTRY, value.bytes, &place, problem))
            return false;
    }
    if (next != PROTO_END || !check_place(&place, name, problem))
        return false;
    CallTensor *output = call_output(call, name, problem);
    if (output == NULL)
        return false;
    if (place.has_classes && !call_output_classes(call, output, place.classes, problem))
        return false;
    return place.region.start == NULL ||
        call_output_region(call, output, place.region, (uint64_t)place.offset, (uint64_t)place.size, problem);
}

bool infer_read(Call *call, uint64_t max_inputs, InferOptions *options, Problem *problem)
{
    Slice message = buffer_slice(&call->body);
    ProtoReader reader = proto_reader(&MODEL_INFER_REQUEST, message), raw = reader;
    ProtoValue value;
    ProtoNext next;
    Named named;
    bool fine = true;
    bool named_right = read_names(message, &named, problem);
    options->id = named_right ? named.id : (Slice){0}; /* Only a valid id can be used, also in errors. */
    if (!named_right || !call_model(call, named.model, named.version, problem))
        return false;
    if (named.raw > max_inputs) {
        refusals_count(REFUSED_INPUTS);
        return problem_set(
            problem, PROBLEM_TOO_LARGE, "the request has more than %llu inputs", (unsigned long long)max_inputs);
    }
    size_t raw_left = named.raw;
    if (named.id.size && !call_id(call, named.id, problem))
        return false;
    while (fine && (next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == MODEL_INFER_REQUEST_parameters)
            fine = read_request_parameter(call, value.bytes, options, problem);
        else if (value.field->number == MODEL_INFER_REQUEST_inputs)
            fine = read_input(call, value.bytes, &raw, &raw_left, named.raw > 0, problem);
        else if (value.field->number == MODEL_INFER_REQUEST_outputs)
            fine = read_output(call, value.bytes, problem);
    }
    if (fine && next == PROTO_END && raw_left)
        return problem_set(problem, PROBLEM_INVALID, "raw_input_contents has %zu elements for %zu inputs that need one",
            named.raw, named.raw - raw_left);
    return fine && next == PROTO_END;
}
