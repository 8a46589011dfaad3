/* MessagePack, as far as our messages use it: written into a growing buffer, read with every bound checked. */
#ifndef PYTRITON_MSGPACK_H
#define PYTRITON_MSGPACK_H

#include "base/buffer.h"
#include "base/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that are read, and whether something unexpected came: then everything that is read later is zero. */
typedef struct {
    const uint8_t *next, *end;
    bool malformed;
} Reader;

void put_array(Buffer *buffer, uint32_t count);
/* So many pairs of a key and a value follow. */
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
/* Whether nil comes next; it is taken away then. */
bool get_nil(Reader *reader);
/* What comes next; nothing is taken away. KIND_NONE: nothing, or no MessagePack. */
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
/* The number of pairs of a map. */
uint32_t get_map(Reader *reader);
void skip(Reader *reader, int depth);
/* Take the rest of an array away: what a later version of the other end may have added. */
void skip_rest(Reader *reader, uint32_t count, uint32_t taken);

/* Put text that may be anything: what is no UTF-8 becomes a question mark, and no more than so many bytes of it. */
void put_clean(Buffer *buffer, const char *text, size_t most);

#endif
