/* The subset of MessagePack that our messages use: written to a growing buffer, read with bounds checks. */
#ifndef PYTRITON_MSGPACK_H
#define PYTRITON_MSGPACK_H

#include "base/buffer.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The bytes to read, and whether they were malformed: then all further reads return zero. */
typedef struct {
    const uint8_t *next, *end;
    bool malformed;
} Reader;

void put_array(Buffer *buffer, uint32_t count);
/* Begin a map of this many pairs. */
void put_map(Buffer *buffer, uint32_t pairs);
void put_text(Buffer *buffer, const char *text, size_t size);
void put_string(Buffer *buffer, const char *text);
void put_int(Buffer *buffer, int64_t value);
void put_uint(Buffer *buffer, uint64_t value);
void put_nil(Buffer *buffer);
void put_bool(Buffer *buffer, bool value);

uint32_t get_array(Reader *reader);
Text get_text(Reader *reader);
int64_t get_int(Reader *reader);
uint64_t get_uint(Reader *reader);
double get_double(Reader *reader);
bool get_bool(Reader *reader);
/* Returns whether nil comes next, and skips it. */
bool get_nil(Reader *reader);
/* The kind of the next value, without reading it. KIND_NONE: the end, or not MessagePack. */
typedef enum {
    KIND_NONE,
    KIND_NIL,
    KIND_BOOL,
    KIND_INT,
    KIND_FLOAT,
    KIND_TEXT,
    KIND_ARRAY,
    KIND_MAP,
    KIND_OTHER,
} Kind;
Kind kind_of(const Reader *reader);
/* Returns the number of pairs of a map. */
uint32_t get_map(Reader *reader);
void skip(Reader *reader, int depth);
/* Skip the remaining elements of an array, which a later version of the other end may have added. */
void skip_rest(Reader *reader, uint32_t count, uint32_t taken);

/* Write arbitrary text: invalid UTF-8 becomes a question mark, and at most `most` bytes are written. */
void put_clean(Buffer *buffer, const char *text, size_t most);

#endif
