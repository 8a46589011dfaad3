#include "protobuf/json_message.h"

/* ModelConfig nests up to six messages. */
enum { MAX_DEPTH = 16 };

static bool put_object(Json *json, const ProtoMessage *message, Buffer *to, Problem *problem, int depth);

Json json_of_core(Slice text)
{
    static const JsonLimits LIMITS = {.depth = JSON_MAX_DEPTH, .values = UINT64_MAX, .string_bytes = UINT64_MAX};
    return json_read(text, &LIMITS);
}

static bool set_invalid(const ProtoField *field, Json *json, Problem *problem)
{
    return problem_set(problem, PROBLEM_INTERNAL, "tritonserver's '%s' is %s, which the protocol does not expect",
        field->name, json_kind_name(json_kind(json)));
}

static bool put_enum(Json *json, const ProtoField *field, Buffer *to, Problem *problem)
{
    Buffer scratch = {0};
    Slice name;
    int64_t number = 0;
    bool found = json_signed(json, &number);
    if (!found && json_string(json, &scratch, &name))
        for (const ProtoEnumValue *value = field->values; value->name && !found; value++)
            if (slice_is(name, value->name)) {
                number = value->number;
                found = true;
            }
    buffer_free(&scratch);
    if (!found)
        return set_invalid(field, json, problem);
    if (number || field->form != PROTO_SINGULAR)
        proto_put_number(to, field->number, (uint64_t)number);
    return true;
}

/* Read an integer, which may be in a string. */
static bool read_integer(Json *json, const ProtoField *field, uint64_t *value)
{
    Buffer scratch = {0};
    Slice digits;
    int64_t number;
    bool is_signed = field->type == PROTO_INT32 || field->type == PROTO_INT64;
    bool found = is_signed ? json_signed(json, &number) : json_unsigned(json, value);
    if (!found && json_string(json, &scratch, &digits))
        found = is_signed ? slice_signed(digits, &number) : slice_unsigned(digits, value);
    if (found && is_signed)
        *value = (uint64_t)number;
    buffer_free(&scratch);
    return found;
}

static bool put_number(Json *json, const ProtoField *field, Buffer *to, Problem *problem)
{
    uint64_t value;
    double number;
    bool flag;
    switch (field->type) {
    case PROTO_DOUBLE:
    case PROTO_FLOAT:
        if (!json_double(json, &number))
            return set_invalid(field, json, problem);
        if (field->type == PROTO_DOUBLE)
            proto_put_double(to, field->number, number);
        else
            proto_put_float(to, field->number, (float)number);
        return true;
    case PROTO_BOOL:
        if (!json_bool(json, &flag))
            return set_invalid(field, json, problem);
        value = flag;
        break;
    default:
        if (!read_integer(json, field, &value))
            return set_invalid(field, json, problem);
    }
    if (value || field->form != PROTO_SINGULAR)
        proto_put_number(to, field->number, value);
    return true;
}

static bool put_string(Json *json, const ProtoField *field, Buffer *to, Problem *problem)
{
    Buffer scratch = {0};
    Slice value;
    bool found = json_string(json, &scratch, &value);
    if (found && (value.size || field->form != PROTO_SINGULAR))
        proto_put_bytes(to, field->number, value);
    buffer_free(&scratch);
    return found || set_invalid(field, json, problem);
}

static bool put_value(Json *json, const ProtoField *field, Buffer *to, Problem *problem, int depth)
{
    switch (field->type) {
    case PROTO_MESSAGE: {
        size_t begun = proto_begin(to, field->number);
        if (!put_object(json, field->message, to, problem, depth + 1))
            return false;
        proto_end(to, begun);
        return true;
    }
    case PROTO_ENUM:
        return put_enum(json, field, to, problem);
    case PROTO_STRING:
    case PROTO_BYTES:
        return put_string(json, field, to, problem);
    default:
        return put_number(json, field, to, problem);
    }
}

/* Write the key of a map. In JSON, it is always a string. */
static bool put_key(Slice key, const ProtoField *field, Buffer *to)
{
    uint64_t number;
    int64_t negative;
    if (field->type == PROTO_STRING) {
        proto_put_bytes(to, field->number, key);
        return true;
    }
    if (slice_unsigned(key, &number))
        proto_put_number(to, field->number, number);
    else if (slice_signed(key, &negative))
        proto_put_number(to, field->number, (uint64_t)negative);
    else
        return false;
    return true;
}

static bool put_map(Json *json, const ProtoField *field, Buffer *to, Problem *problem, int depth)
{
    Buffer scratch = {0};
    Slice key;
    bool fine = json_object(json) || set_invalid(field, json, problem);
    while (fine && json_member(json, &scratch, &key)) {
        size_t begun = proto_begin(to, field->number);
        fine = put_key(key, proto_field(field->message, 1), to) || set_invalid(field, json, problem);
        fine = fine && put_value(json, proto_field(field->message, 2), to, problem, depth);
        proto_end(to, begun);
    }
    buffer_free(&scratch);
    return fine;
}

static bool put_field(Json *json, const ProtoField *field, Buffer *to, Problem *problem, int depth)
{
    if (field == NULL || json_kind(json) == JSON_NULL)
        return json_skip(json);
    if (field->form == PROTO_MAP)
        return put_map(json, field, to, problem, depth);
    if (field->form != PROTO_REPEATED)
        return put_value(json, field, to, problem, depth);
    if (!json_array(json))
        return set_invalid(field, json, problem);
    while (json_element(json))
        if (!put_value(json, field, to, problem, depth))
            return false;
    return true;
}

static bool put_object(Json *json, const ProtoMessage *message, Buffer *to, Problem *problem, int depth)
{
    Buffer scratch = {0};
    Slice key;
    bool fine = depth < MAX_DEPTH && json_object(json);
    if (!fine)
        problem_set(problem, PROBLEM_INTERNAL, "tritonserver's answer is not a valid %s", message->name);
    while (fine && json_member(json, &scratch, &key))
        fine = put_field(json, proto_field_named(message, key), to, problem, depth);
    buffer_free(&scratch);
    return fine;
}

bool message_from_json(Json *json, const ProtoMessage *message, Buffer *to, Problem *problem)
{
    return put_object(json, message, to, problem, 0) &&
        (!json_failed(json) || json_problem(json, "tritonserver's answer", problem));
}
