#include "protobuf/protobuf.h"

#include "common/utf8.h"

#include <stdint.h>

enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_GROUP, WIRE_GROUP_END, WIRE_32 };
/* Maximum nesting of groups, which have been obsolete since proto2. The same as for messages. */
enum { MAX_GROUPS = 32 };
enum { VARINT_BYTES = 10 };

const ProtoField *proto_field(const ProtoMessage *message, uint32_t number)
{
    /* Fast path: most fields are numbered from 1 without gaps. */
    if (number - 1 < message->count && message->fields[number - 1].number == number)
        return &message->fields[number - 1];
    for (size_t i = 0; i < message->count; i++)
        if (message->fields[i].number == number)
            return &message->fields[i];
    return NULL;
}

const ProtoField *proto_field_named(const ProtoMessage *message, Slice name)
{
    for (size_t i = 0; i < message->count; i++)
        if (slice_is(name, message->fields[i].name))
            return &message->fields[i];
    return NULL;
}

static bool take_varint(const char **at, const char *end, uint64_t *value)
{
    uint64_t found = 0;
    for (int i = 0; i < VARINT_BYTES && *at < end; i++) {
        uint8_t byte = (uint8_t)*(*at)++;
        if (i == VARINT_BYTES - 1 && byte > 1)
            return false; /* The number has more than 64 bits. */
        found |= (uint64_t)(byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            *value = found;
            return true;
        }
    }
    return false;
}

/* Read a little-endian number of `size` bytes. */
static bool take_fixed(const char **at, const char *end, size_t size, uint64_t *value)
{
    if ((size_t)(end - *at) < size)
        return false;
    *value = 0;
    for (size_t i = 0; i < size; i++)
        *value |= (uint64_t)(uint8_t)(*at)[i] << (8 * i);
    *at += size;
    return true;
}

static bool take_bytes(const char **at, const char *end, Slice *bytes)
{
    uint64_t size;
    if (!take_varint(at, end, &size) || size > (uint64_t)(end - *at))
        return false;
    *bytes = (Slice){*at, (size_t)size};
    *at += size;
    return true;
}

static bool skip_plain(const char **at, const char *end, unsigned wire)
{
    uint64_t number;
    Slice bytes;
    switch (wire) {
    case WIRE_VARINT:
        return take_varint(at, end, &number);
    case WIRE_64:
        return take_fixed(at, end, 8, &number);
    case WIRE_32:
        return take_fixed(at, end, 4, &number);
    case WIRE_BYTES:
        return take_bytes(at, end, &bytes);
    default:
        return false;
    }
}

static bool take_tag(const char **at, const char *end, uint32_t *number, unsigned *wire)
{
    uint64_t tag;
    if (!take_varint(at, end, &tag) || tag > UINT32_MAX || tag >> 3 == 0)
        return false;
    *number = (uint32_t)(tag >> 3);
    *wire = tag & 7;
    return true;
}

static bool skip_group(const char **at, const char *end, uint32_t number)
{
    uint32_t open[MAX_GROUPS] = {number};
    size_t depth = 1;
    while (depth) {
        unsigned wire;
        if (!take_tag(at, end, &number, &wire))
            return false;
        if (wire == WIRE_GROUP) {
            if (depth == MAX_GROUPS)
                return false;
            open[depth++] = number;
        } else if (wire == WIRE_GROUP_END) {
            if (open[--depth] != number)
                return false;
        } else if (!skip_plain(at, end, wire)) {
            return false;
        }
    }
    return true;
}

static unsigned wire_of(ProtoType type)
{
    switch (type) {
    case PROTO_DOUBLE:
        return WIRE_64;
    case PROTO_FLOAT:
        return WIRE_32;
    case PROTO_STRING:
    case PROTO_BYTES:
    case PROTO_MESSAGE:
        return WIRE_BYTES;
    default:
        return WIRE_VARINT;
    }
}

/* Convert a varint to a field's type. A 32-bit type uses its lower half. */
static uint64_t narrowed(ProtoType type, uint64_t number)
{
    switch (type) {
    case PROTO_BOOL:
        return number != 0;
    case PROTO_INT32:
    case PROTO_ENUM:
        return (uint64_t)(int64_t)(int32_t)(uint32_t)number;
    case PROTO_UINT32:
        return (uint32_t)number;
    default:
        return number;
    }
}

static bool take_number(ProtoType type, const char **at, const char *end, uint64_t *number)
{
    unsigned wire = wire_of(type);
    if (wire == WIRE_64 || wire == WIRE_32)
        return take_fixed(at, end, wire == WIRE_64 ? 8 : 4, number);
    if (!take_varint(at, end, number))
        return false;
    *number = narrowed(type, *number);
    return true;
}

static ProtoNext set_broken(const ProtoReader *reader, const ProtoField *field, const char *what, Problem *problem)
{
    problem_set(problem, PROBLEM_INVALID, "the request is not a valid %s: %s %s", reader->message->name,
        field ? field->name : "a field", what);
    return PROTO_BROKEN;
}

ProtoNext proto_next(ProtoReader *reader, ProtoValue *value, Problem *problem)
{
    while (reader->at < reader->end) {
        uint32_t number;
        unsigned wire;
        if (!take_tag(&reader->at, reader->end, &number, &wire))
            return set_broken(reader, NULL, "has no valid number", problem);
        const ProtoField *field = proto_field(reader->message, number);
        bool several = field && (field->form == PROTO_REPEATED || field->form == PROTO_MAP);
        *value = (ProtoValue){.field = field};
        if (field && wire == wire_of(field->type) && wire != WIRE_BYTES) {
            if (!take_number(field->type, &reader->at, reader->end, &value->number))
                return set_broken(reader, field, "is cut off", problem);
            return PROTO_FOUND;
        }
        if (field && wire == WIRE_BYTES && (wire_of(field->type) == WIRE_BYTES || several)) {
            if (!take_bytes(&reader->at, reader->end, &value->bytes))
                return set_broken(reader, field, "is cut off", problem);
            value->packed = wire_of(field->type) != WIRE_BYTES;
            if (field->type == PROTO_STRING && !utf8_is_valid(value->bytes))
                return set_broken(reader, field, "is not valid UTF-8", problem);
            return PROTO_FOUND;
        }
        /* The field is unknown, or has another type than declared. Skip it, as all parsers do. */
        bool skipped = wire == WIRE_GROUP ? skip_group(&reader->at, reader->end, number)
                                          : skip_plain(&reader->at, reader->end, wire);
        if (!skipped)
            return set_broken(reader, NULL, "cannot be skipped", problem);
    }
    return PROTO_END;
}

ProtoNext proto_next_packed(ProtoType type, Slice *rest, uint64_t *number)
{
    if (rest->size == 0)
        return PROTO_END;
    const char *at = rest->start;
    if (!take_number(type, &at, rest->start + rest->size, number))
        return PROTO_BROKEN;
    *rest = slice_after(*rest, (size_t)(at - rest->start));
    return PROTO_FOUND;
}

/* ── writing ────────────────────────────────────────────────────────────────────────────────────────── */

static size_t write_varint(char *at, uint64_t value)
{
    size_t size = 0;
    for (; value >= 0x80; value >>= 7)
        at[size++] = (char)(value | 0x80);
    at[size++] = (char)value;
    return size;
}

static size_t varint_size(uint64_t value)
{
    size_t size = 1;
    for (; value >= 0x80; value >>= 7)
        size++;
    return size;
}

static void put_varint(Buffer *text, uint64_t value)
{
    char bytes[VARINT_BYTES];
    size_t size = write_varint(bytes, value);
    buffer_put(text, bytes, size);
}

static void put_tag(Buffer *text, uint32_t field, unsigned wire)
{
    put_varint(text, (uint64_t)field << 3 | wire);
}

static void put_fixed(Buffer *text, uint64_t value, size_t size)
{
    char bytes[8] = {0};
    for (size_t i = 0; i < size; i++)
        bytes[i] = (char)(value >> (8 * i));
    buffer_put(text, bytes, size);
}

void proto_put_number(Buffer *text, uint32_t field, uint64_t value)
{
    put_tag(text, field, WIRE_VARINT);
    put_varint(text, value);
}

void proto_put_double(Buffer *text, uint32_t field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tag(text, field, WIRE_64);
    put_fixed(text, bits, sizeof bits);
}

void proto_put_float(Buffer *text, uint32_t field, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_tag(text, field, WIRE_32);
    put_fixed(text, bits, sizeof bits);
}

void proto_put_bytes_head(Buffer *text, uint32_t field, size_t size)
{
    put_tag(text, field, WIRE_BYTES);
    put_varint(text, size);
}

void proto_put_bytes(Buffer *text, uint32_t field, Slice bytes)
{
    proto_put_bytes_head(text, field, bytes.size);
    buffer_put_slice(text, bytes);
}

size_t proto_bytes_size(uint32_t field, size_t size)
{
    return varint_size((uint64_t)field << 3) + varint_size(size) + size;
}

void proto_put_packed(Buffer *text, uint32_t field, const int64_t *values, size_t count)
{
    size_t size = 0;
    if (count == 0)
        return;
    for (size_t i = 0; i < count; i++)
        size += varint_size((uint64_t)values[i]);
    proto_put_bytes_head(text, field, size);
    for (size_t i = 0; i < count; i++)
        put_varint(text, (uint64_t)values[i]);
}

size_t proto_begin(Buffer *text, uint32_t field)
{
    put_tag(text, field, WIRE_BYTES);
    buffer_put_char(text, 0); /* Reserve one byte for the size: most messages have less than 128 bytes. */
    return text->size;
}

void proto_end(Buffer *text, size_t begun)
{
    if (text->failed)
        return;
    char length[VARINT_BYTES];
    size_t size = text->size - begun;
    size_t digits = write_varint(length, size);
    if (digits > 1 && buffer_extend(text, digits - 1) == NULL)
        return;
    memmove(text->data + begun + digits - 1, text->data + begun, size);
    memcpy(text->data + begun - 1, length, digits);
}
