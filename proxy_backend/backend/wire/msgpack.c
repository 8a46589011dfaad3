/* MessagePack (https://github.com/msgpack/msgpack/blob/master/spec.md). Numbers are big-endian. */
#include "wire/msgpack.h"

#include "common/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

/* Write a type byte and a number of `bytes` bytes. */
static void put_number(Buffer *buffer, uint8_t kind, uint64_t value, int bytes)
{
    uint8_t out[9] = {kind};
    for (int i = 0; i < bytes; i++)
        out[1 + i] = (uint8_t)(value >> (8 * (bytes - 1 - i)));
    buffer_put(buffer, out, 1 + (size_t)bytes);
}

/* Write the count of an array or map. Small counts are part of the type byte. */
static void put_count(Buffer *buffer, uint32_t count, uint8_t few, uint8_t small, uint8_t large)
{
    if (count < 16)
        put_number(buffer, (uint8_t)(few | count), 0, 0);
    else if (count <= UINT16_MAX)
        put_number(buffer, small, count, 2);
    else
        put_number(buffer, large, count, 4);
}

void msgpack_put_array(Buffer *buffer, uint32_t count)
{
    put_count(buffer, count, 0x90, 0xdc, 0xdd);
}

void msgpack_put_map(Buffer *buffer, uint32_t pairs)
{
    put_count(buffer, pairs, 0x80, 0xde, 0xdf);
}

void msgpack_put_text(Buffer *buffer, const char *text, size_t size)
{
    if (size < 32)
        put_number(buffer, (uint8_t)(0xa0 | size), 0, 0);
    else if (size <= UINT16_MAX)
        put_number(buffer, 0xda, size, 2);
    else
        put_number(buffer, 0xdb, size, 4);
    buffer_put(buffer, text, size);
}

void msgpack_put_string(Buffer *buffer, const char *text)
{
    msgpack_put_text(buffer, text, strlen(text));
}

void msgpack_put_uint(Buffer *buffer, uint64_t value)
{
    if (value < 128)
        put_number(buffer, (uint8_t)value, 0, 0);
    else if (value <= UINT32_MAX)
        put_number(buffer, 0xce, value, 4);
    else
        put_number(buffer, 0xcf, value, 8);
}

void msgpack_put_int(Buffer *buffer, int64_t value)
{
    if (value >= 0)
        msgpack_put_uint(buffer, (uint64_t)value);
    else
        put_number(buffer, 0xd3, (uint64_t)value, 8);
}

void msgpack_put_nil(Buffer *buffer)
{
    put_number(buffer, 0xc0, 0, 0);
}

void msgpack_put_bool(Buffer *buffer, bool value)
{
    put_number(buffer, value ? 0xc3 : 0xc2, 0, 0);
}

static int peek(const Reader *reader)
{
    return reader->malformed || reader->next == reader->end ? -1 : *reader->next;
}

static void fail(Reader *reader)
{
    reader->malformed = true;
    reader->next = reader->end;
}

/* Read the next type byte. Returns -1 at the end. */
static int take(Reader *reader)
{
    int kind = peek(reader);
    if (kind < 0)
        fail(reader);
    else
        reader->next++;
    return kind;
}

static uint64_t take_number(Reader *reader, int bytes)
{
    if (reader->malformed || reader->end - reader->next < bytes) {
        fail(reader);
        return 0;
    }
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value = value << 8 | *reader->next++;
    return value;
}

static uint32_t take_count(Reader *reader, int few, int small, int large)
{
    int kind = take(reader);
    uint64_t count = 0;
    if (kind >= few && kind < few + 16)
        count = (uint64_t)(kind - few);
    else if (kind == small)
        count = take_number(reader, 2);
    else if (kind == large)
        count = take_number(reader, 4);
    else
        fail(reader);
    /* Each element has at least one byte. Reject an impossible count before the caller allocates memory for it. */
    if (count > (uint64_t)(reader->end - reader->next)) {
        fail(reader);
        return 0;
    }
    return (uint32_t)count;
}

uint32_t msgpack_get_array(Reader *reader)
{
    return take_count(reader, 0x90, 0xdc, 0xdd);
}

uint32_t msgpack_get_map(Reader *reader)
{
    return take_count(reader, 0x80, 0xde, 0xdf);
}

static Slice take_bytes(Reader *reader, uint64_t size)
{
    Slice text = {"", 0};
    if (reader->malformed || size > (uint64_t)(reader->end - reader->next)) {
        fail(reader);
        return text;
    }
    text.start = (const char *)reader->next;
    text.size = (size_t)size;
    reader->next += size;
    return text;
}

/* Kinds by type byte. */
static const uint8_t kinds[256] = {
    [0x00 ... 0x7f] = MSGPACK_INT,
    [0x80 ... 0x8f] = MSGPACK_MAP,
    [0x90 ... 0x9f] = MSGPACK_ARRAY,
    [0xa0 ... 0xbf] = MSGPACK_TEXT,
    [0xc0] = MSGPACK_NIL,
    [0xc1] = MSGPACK_NONE,
    [0xc2 ... 0xc3] = MSGPACK_BOOL,
    [0xc4 ... 0xc9] = MSGPACK_OTHER,
    [0xca ... 0xcb] = MSGPACK_FLOAT,
    [0xcc ... 0xd3] = MSGPACK_INT,
    [0xd4 ... 0xd8] = MSGPACK_OTHER,
    [0xd9 ... 0xdb] = MSGPACK_TEXT,
    [0xdc ... 0xdd] = MSGPACK_ARRAY,
    [0xde ... 0xdf] = MSGPACK_MAP,
    [0xe0 ... 0xff] = MSGPACK_INT,
};

MsgpackKind msgpack_kind(const Reader *reader)
{
    int byte = peek(reader);
    return byte < 0 ? MSGPACK_NONE : (MsgpackKind)kinds[byte];
}

Slice msgpack_get_text(Reader *reader)
{
    int kind = take(reader);
    if (kind >= 0xa0 && kind < 0xc0)
        return take_bytes(reader, (uint64_t)(kind - 0xa0));
    if (kind >= 0xd9 && kind <= 0xdb)
        return take_bytes(reader, take_number(reader, 1 << (kind - 0xd9)));
    fail(reader);
    return (Slice){"", 0};
}

int64_t msgpack_get_int(Reader *reader)
{
    int kind = take(reader);
    if (kind >= 0 && kind < 0x80)
        return kind;
    if (kind >= 0xe0)
        return kind - 0x100;
    if (kind >= 0xcc && kind <= 0xcf) {
        uint64_t value = take_number(reader, 1 << (kind - 0xcc));
        if (value > INT64_MAX)
            fail(reader);
        return reader->malformed ? 0 : (int64_t)value;
    }
    switch (kind) {
    case 0xd0:
        return (int8_t)take_number(reader, 1);
    case 0xd1:
        return (int16_t)take_number(reader, 2);
    case 0xd2:
        return (int32_t)take_number(reader, 4);
    case 0xd3:
        return (int64_t)take_number(reader, 8);
    default:
        fail(reader);
        return 0;
    }
}

uint64_t msgpack_get_uint(Reader *reader)
{
    if (peek(reader) != 0xcf) {
        int64_t value = msgpack_get_int(reader);
        if (value < 0)
            fail(reader);
        return value < 0 ? 0 : (uint64_t)value;
    }
    take(reader);
    return take_number(reader, 8);
}

double msgpack_get_double(Reader *reader)
{
    int kind = peek(reader);
    if (kind == 0xcf)
        return (double)msgpack_get_uint(reader);
    if (kind != 0xca && kind != 0xcb)
        return (double)msgpack_get_int(reader);
    take(reader);
    if (kind == 0xca) {
        uint32_t bits = (uint32_t)take_number(reader, 4);
        float value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    uint64_t bits = take_number(reader, 8);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

bool msgpack_get_bool(Reader *reader)
{
    int kind = take(reader);
    if (kind != 0xc2 && kind != 0xc3)
        fail(reader);
    return kind == 0xc3;
}

bool msgpack_get_nil(Reader *reader)
{
    if (peek(reader) != 0xc0)
        return false;
    reader->next++;
    return true;
}

/* Returns the number of bytes after a number's type byte. */
static int number_bytes(uint8_t kind)
{
    if (kind < 0x80 || kind >= 0xe0)
        return 0;
    return kind <= 0xcb ? 4 << (kind - 0xca) : 1 << ((kind - 0xcc) & 3);
}

/* Skip a value that our messages never contain: bytes, or an extension type. */
static void skip_other(Reader *reader)
{
    int kind = take(reader);
    if (kind >= 0xd4) /* a type and 1, 2, 4, 8 or 16 bytes */
        take_bytes(reader, 1 + (UINT64_C(1) << (kind - 0xd4)));
    else if (kind >= 0xc7) /* a type, a size, and that many bytes */
        take_bytes(reader, 1 + take_number(reader, 1 << (kind - 0xc7)));
    else if (kind >= 0xc4)
        take_bytes(reader, take_number(reader, 1 << (kind - 0xc4)));
}

void msgpack_skip(Reader *reader, int depth)
{
    MsgpackKind kind = msgpack_kind(reader);
    uint32_t count = 0;
    if (depth > MAX_DEPTH) {
        fail(reader);
        return;
    }
    switch (kind) {
    case MSGPACK_NONE:
        fail(reader);
        return;
    case MSGPACK_INT:
    case MSGPACK_FLOAT:
        take_number(reader, 1 + number_bytes(*reader->next));
        return;
    case MSGPACK_NIL:
    case MSGPACK_BOOL:
        reader->next++;
        return;
    case MSGPACK_TEXT:
        msgpack_get_text(reader);
        return;
    case MSGPACK_OTHER:
        skip_other(reader);
        return;
    case MSGPACK_ARRAY:
        count = msgpack_get_array(reader);
        break;
    case MSGPACK_MAP:
        count = msgpack_get_map(reader);
        break;
    }
    for (; count && !reader->malformed; count--) {
        if (kind == MSGPACK_MAP)
            msgpack_skip(reader, depth + 1);
        msgpack_skip(reader, depth + 1);
    }
}

void msgpack_skip_rest(Reader *reader, uint32_t count, uint32_t taken)
{
    for (; taken < count && !reader->malformed; taken++)
        msgpack_skip(reader, 0);
}

void msgpack_put_sanitized(Buffer *buffer, const char *text, size_t most)
{
    Buffer clean = {0};
    size_t left = strlen(text);
    while (left) {
        size_t known = utf8_char_size(text, left), size = known ? known : 1;
        if (clean.size + size > most)
            break;
        buffer_put(&clean, known ? text : "?", size);
        text += size;
        left -= size;
    }
    buffer->failed |= clean.failed;
    msgpack_put_text(buffer, clean.data, clean.failed ? 0 : clean.size);
    buffer_free(&clean);
}
