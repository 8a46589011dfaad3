/* The subset of MessagePack that our messages use. Writers append to a buffer; readers check bounds. */
#ifndef PYTRITON_BACKEND_WIRE_MSGPACK_H
#define PYTRITON_BACKEND_WIRE_MSGPACK_H

#include "common/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes that remain to be read. Once malformed input is found, all further reads return zero. */
typedef struct {
    const uint8_t *next, *end;
    bool malformed;
} Reader;

static inline Reader msgpack_read(const void *bytes, size_t size)
{
    return (Reader){bytes, (const uint8_t *)bytes + size, false};
}

void msgpack_put_array(Buffer *buffer, uint32_t count);
/* Begin a map of this many pairs. */
void msgpack_put_map(Buffer *buffer, uint32_t pairs);
void msgpack_put_text(Buffer *buffer, const char *text, size_t size);
void msgpack_put_string(Buffer *buffer, const char *text);
void msgpack_put_int(Buffer *buffer, int64_t value);
void msgpack_put_uint(Buffer *buffer, uint64_t value);
void msgpack_put_nil(Buffer *buffer);
void msgpack_put_bool(Buffer *buffer, bool value);

uint32_t msgpack_get_array(Reader *reader);
Slice msgpack_get_text(Reader *reader);
int64_t msgpack_get_int(Reader *reader);
uint64_t msgpack_get_uint(Reader *reader);
double msgpack_get_double(Reader *reader);
bool msgpack_get_bool(Reader *reader);
/* Skip the next value if it is nil. Returns whether it was. */
bool msgpack_get_nil(Reader *reader);
/* The kind of the next value, which is not read. MSGPACK_NONE means the end, or malformed input. */
typedef enum {
    MSGPACK_NONE,
    MSGPACK_NIL,
    MSGPACK_BOOL,
    MSGPACK_INT,
    MSGPACK_FLOAT,
    MSGPACK_TEXT,
    MSGPACK_ARRAY,
    MSGPACK_MAP,
    MSGPACK_OTHER,
} MsgpackKind;
MsgpackKind msgpack_kind(const Reader *reader);
/* Returns the number of pairs of a map. */
uint32_t msgpack_get_map(Reader *reader);
void msgpack_skip(Reader *reader, int depth);
/* Skip the remaining elements of an array. Later versions of the other end may append some. */
void msgpack_skip_rest(Reader *reader, uint32_t count, uint32_t taken);

/* Write at most `most` bytes of a text. Each byte that is not valid UTF-8 becomes a question mark. */
void msgpack_put_sanitized(Buffer *buffer, const char *text, size_t most);

#endif
