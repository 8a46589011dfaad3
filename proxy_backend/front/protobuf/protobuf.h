/* Protocol Buffers on the wire (https://protobuf.dev/programming-guides/encoding/): read in place, written into a Text.
 *
 * Messages are read field by field by their tables (messages.h), without memory of their own: texts and bytes are views
 * into the message. Who reads a nested message makes a reader of its bytes, so nothing here recurses.
 */
#ifndef PYTRITON_FRONT_PROTOBUF_H
#define PYTRITON_FRONT_PROTOBUF_H

#include "base/problem.h"
#include "base/text.h"

typedef enum {
    PROTO_DOUBLE,
    PROTO_FLOAT,
    PROTO_INT32,
    PROTO_INT64,
    PROTO_UINT32,
    PROTO_UINT64,
    PROTO_BOOL,
    PROTO_ENUM,
    PROTO_STRING,
    PROTO_BYTES,
    PROTO_MESSAGE,
} ProtoType;

/* Once; once, and its absence is told from its default; repeated; repeated entries of a map: key 1, value 2. */
typedef enum { PROTO_ONE, PROTO_MAYBE, PROTO_MANY, PROTO_MAP } ProtoForm;

/* The last one has no name. */
typedef struct {
    int32_t number;
    const char *name;
} ProtoEnumValue;

typedef struct ProtoMessage ProtoMessage;

typedef struct {
    uint32_t number;
    uint8_t type, form;
    const char *name;
    const ProtoMessage *message; /* of PROTO_MESSAGE */
    const ProtoEnumValue *values; /* of PROTO_ENUM */
} ProtoField;

struct ProtoMessage {
    const char *name;
    const ProtoField *fields; /* by number */
    size_t count;
};

/* NULL: the message has no such field. */
const ProtoField *proto_field(const ProtoMessage *message, uint32_t number);
const ProtoField *proto_field_named(const ProtoMessage *message, Slice name);

/* ── reading ────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const ProtoMessage *message;
    const char *at, *end;
} ProtoReader;

typedef enum { PROTO_FOUND, PROTO_END, PROTO_BROKEN } ProtoNext;

/* A value of a field. Of numbers `number` has the bits: of PROTO_DOUBLE and PROTO_FLOAT their 8 or 4 bytes, of signed
 * ones the value as int64_t. Of texts, bytes, messages and `packed` numbers `bytes` lie in the message. */
typedef struct {
    const ProtoField *field;
    bool packed;
    uint64_t number;
    Slice bytes;
} ProtoValue;

static inline ProtoReader proto_reader(const ProtoMessage *message, Slice bytes)
{
    return (ProtoReader){message, bytes.start, bytes.start + bytes.size};
}

/* The next field that the table knows; others are passed over. PROTO_BROKEN: `problem` says what is wrong. A field may
 * come more than once where it should not: the last one counts, and messages are to be merged. */
ProtoNext proto_next(ProtoReader *reader, ProtoValue *value, Problem *problem);
/* The next one of packed numbers. PROTO_BROKEN: it is cut off, or has too many bytes. */
ProtoNext proto_next_packed(ProtoType type, Slice *rest, uint64_t *number);
/* How many packed numbers there are; false: the last one is cut off. */
bool proto_count_packed(ProtoType type, Slice bytes, size_t *count);

static inline double proto_double(uint64_t number)
{
    double value;
    memcpy(&value, &number, sizeof value);
    return value;
}

static inline float proto_float(uint64_t number)
{
    uint32_t bits = (uint32_t)number;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* ── writing ────────────────────────────────────────────────────────────────────────────────────────── */

/* Numbers and their names; a signed one is given as its value converted to uint64_t. */
void proto_put_number(Text *text, uint32_t field, uint64_t value);
void proto_put_double(Text *text, uint32_t field, double value);
void proto_put_float(Text *text, uint32_t field, float value);
/* A text, bytes, or a message that has been written elsewhere. */
void proto_put_bytes(Text *text, uint32_t field, Slice bytes);
/* As much of such a field as comes before its bytes, which are sent from where they lie. */
void proto_put_bytes_head(Text *text, uint32_t field, size_t size);
/* So many bytes are such a field. */
size_t proto_bytes_size(uint32_t field, size_t size);
void proto_put_packed(Text *text, uint32_t field, const int64_t *values, size_t count);
/* A message that is written in between: `proto_end` has what `proto_begin` returned. */
size_t proto_begin(Text *text, uint32_t field);
void proto_end(Text *text, size_t begun);

#endif
