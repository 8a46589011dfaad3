/* Reads protobuf messages (https://protobuf.dev/programming-guides/encoding/) in place, and writes them to a Buffer.
 *
 * Messages are read field by field, using their tables in messages.h. No memory is allocated: texts and bytes are views
 * into the message. A nested message is read by another reader, so no function recurses.
 */
#ifndef PYTRITON_FRONTEND_PROTOBUF_H
#define PYTRITON_FRONTEND_PROTOBUF_H

#include "base/problem.h"
#include "common/buffer.h"

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

/* How often a field occurs. PROTO_OPTIONAL has presence; a PROTO_MAP entry has the fields 1 (key) and 2 (value). */
typedef enum { PROTO_SINGULAR, PROTO_OPTIONAL, PROTO_REPEATED, PROTO_MAP } ProtoForm;

/* A value of an enum. The last element of an array has no name. */
typedef struct {
    int32_t number;
    const char *name;
} ProtoEnumValue;

typedef struct ProtoMessage ProtoMessage;

typedef struct {
    uint32_t number;
    uint8_t type, form;
    const char *name;
    const ProtoMessage *message; /* for PROTO_MESSAGE */
    const ProtoEnumValue *values; /* for PROTO_ENUM */
} ProtoField;

struct ProtoMessage {
    const char *name;
    const ProtoField *fields; /* sorted by number */
    size_t count;
};

/* Returns the field with this number, or NULL. */
const ProtoField *proto_field(const ProtoMessage *message, uint32_t number);
const ProtoField *proto_field_named(const ProtoMessage *message, Slice name);

/* ── reading ────────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const ProtoMessage *message;
    const char *at, *end;
} ProtoReader;

typedef enum { PROTO_FOUND, PROTO_END, PROTO_BROKEN } ProtoNext;

/* The value of a field. `number` has the bits of a number: for PROTO_DOUBLE and PROTO_FLOAT its 8 or 4 bytes, for
 * signed types an int64_t. `bytes` is a view of a text, bytes, a message, or packed numbers.
 */
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

/* Read the next field that the message's table contains; others are skipped. PROTO_BROKEN comes with a problem. A
 * singular field can occur more than once: then the last one counts, and messages have to be merged.
 */
ProtoNext proto_next(ProtoReader *reader, ProtoValue *value, Problem *problem);
/* Read the next packed number. PROTO_BROKEN means that it is truncated or too long. */
ProtoNext proto_next_packed(ProtoType type, Slice *rest, uint64_t *number);

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

/* Write a number. A signed one is passed as an int64_t converted to uint64_t. */
void proto_put_number(Buffer *text, uint32_t field, uint64_t value);
void proto_put_double(Buffer *text, uint32_t field, double value);
void proto_put_float(Buffer *text, uint32_t field, float value);
/* Write a text, bytes, or an encoded message. */
void proto_put_bytes(Buffer *text, uint32_t field, Slice bytes);
/* Write the part of such a field that comes before the bytes, which are sent from elsewhere. */
void proto_put_bytes_head(Buffer *text, uint32_t field, size_t size);
/* Returns the encoded size of such a field. */
size_t proto_bytes_size(uint32_t field, size_t size);
void proto_put_packed(Buffer *text, uint32_t field, const int64_t *values, size_t count);
/* Begin and end a nested message. proto_end gets the result of proto_begin. */
size_t proto_begin(Buffer *text, uint32_t field);
void proto_end(Buffer *text, size_t begun);

#endif
