/* Reads inputs whose values are fields of the message instead of raw bytes. */
#include "grpc/infer.h"
#include "protobuf/messages.h"

/* Returns the number of the field in InferTensorContents that holds values of a type, or 0. */
static uint32_t field_of(DataType datatype)
{
    switch (datatype) {
    case TYPE_BOOL:
        return INFER_TENSOR_CONTENTS_bool_contents;
    case TYPE_INT8:
    case TYPE_INT16:
    case TYPE_INT32:
        return INFER_TENSOR_CONTENTS_int_contents;
    case TYPE_INT64:
        return INFER_TENSOR_CONTENTS_int64_contents;
    case TYPE_UINT8:
    case TYPE_UINT16:
    case TYPE_UINT32:
        return INFER_TENSOR_CONTENTS_uint_contents;
    case TYPE_UINT64:
        return INFER_TENSOR_CONTENTS_uint64_contents;
    case TYPE_FP32:
        return INFER_TENSOR_CONTENTS_fp32_contents;
    case TYPE_FP64:
        return INFER_TENSOR_CONTENTS_fp64_contents;
    case TYPE_BYTES:
        return INFER_TENSOR_CONTENTS_bytes_contents;
    default:
        return 0;
    }
}

/* The converted values. */
typedef struct {
    const CallTensor *input;
    size_t size; /* size of one value; 0 for BYTES */
    char *start, *at, *end;
} Values;

static bool value_fits(DataType datatype, uint64_t number)
{
    int64_t value = (int64_t)number;
    switch (datatype) {
    case TYPE_INT8:
        return value >= INT8_MIN && value <= INT8_MAX;
    case TYPE_INT16:
        return value >= INT16_MIN && value <= INT16_MAX;
    case TYPE_UINT8:
        return number <= UINT8_MAX;
    case TYPE_UINT16:
        return number <= UINT16_MAX;
    default:
        return true;
    }
}

static bool too_many(const Values *values, Problem *problem)
{
    return problem_set(
        problem, PROBLEM_INVALID, "the contents of input '%s' have more values than its shape", values->input->name);
}

/* Append a number. Memory is little-endian (x86-64, aarch64), so a narrower type consists of the first bytes. */
static bool add_number(Values *values, uint64_t number, Problem *problem)
{
    if (!value_fits(values->input->datatype, number))
        return problem_set(problem, PROBLEM_INVALID, "a value of input '%s' is out of the range of %s",
            values->input->name, datatype_name(values->input->datatype));
    if ((size_t)(values->end - values->at) < values->size)
        return too_many(values, problem);
    memcpy(values->at, &number, values->size);
    values->at += values->size;
    return true;
}

static bool add_packed(Values *values, ProtoType type, Slice packed, Problem *problem)
{
    uint64_t number;
    ProtoNext next;
    if (type == PROTO_FLOAT || type == PROTO_DOUBLE) {
        if ((size_t)(values->end - values->at) < packed.size)
            return too_many(values, problem);
        memcpy(values->at, packed.start, packed.size);
        values->at += packed.size;
        return packed.size % values->size == 0 ||
            problem_set(problem, PROBLEM_INVALID, "the contents of input '%s' are truncated", values->input->name);
    }
    while ((next = proto_next_packed(type, &packed, &number)) == PROTO_FOUND)
        if (!add_number(values, number, problem))
            return false;
    return next == PROTO_END ||
        problem_set(problem, PROBLEM_INVALID, "the contents of input '%s' are truncated", values->input->name);
}

static bool add_bytes(Values *values, Slice bytes, Problem *problem)
{
    uint32_t size = (uint32_t)bytes.size;
    if ((size_t)(values->end - values->at) < sizeof size + bytes.size)
        return too_many(values, problem);
    memcpy(values->at, &size, sizeof size);
    memcpy(values->at + sizeof size, bytes.start, bytes.size);
    values->at += sizeof size + bytes.size;
    return true;
}

static bool add(Values *values, ProtoValue *value, Problem *problem)
{
    if (value->packed)
        return add_packed(values, value->field->type, value->bytes, problem);
    if (values->size == 0)
        return add_bytes(values, value->bytes, problem);
    return add_number(values, value->number, problem);
}

/* Returns the size of the converted values. A BYTES element has 4 bytes in addition, and needs at least 2 in the
 * message.
 */
static size_t room_for(const CallTensor *input, Slice contents)
{
    return input->expected == UINT64_MAX ? contents.size * 3 : (size_t)input->expected;
}

bool infer_read_contents(Call *call, const CallTensor *input, Slice contents, Problem *problem)
{
    ProtoReader reader = proto_reader(&INFER_TENSOR_CONTENTS, contents);
    ProtoValue value;
    ProtoNext next;
    uint32_t field = field_of(input->datatype);
    size_t room = room_for(input, contents);
    if (field == 0)
        return problem_set(problem, PROBLEM_INVALID,
            "values of type %s, of input '%s', can only be sent in raw_input_contents", datatype_name(input->datatype),
            input->name);
    /* Each number needs at least one byte in the message: do not allocate memory because of a large shape. */
    if (input->expected != UINT64_MAX && input->elements > contents.size)
        return problem_set(
            problem, PROBLEM_INVALID, "the contents of input '%s' have fewer values than its shape", input->name);
    Values values = {
        .input = input, .size = datatype_size(input->datatype), .start = call_memory(call, room ? room : 1)};
    if (values.start == NULL)
        return problem_no_memory(problem);
    values.at = values.start;
    values.end = values.start + room;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number != field)
            return problem_set(problem, PROBLEM_INVALID, "the contents of input '%s', of type %s, are in %s",
                input->name, datatype_name(input->datatype), value.field->name);
        if (!add(&values, &value, problem))
            return false;
    }
    return next == PROTO_END && call_input_data(call, values.start, (size_t)(values.at - values.start), problem);
}
