/* A pull reader of JSON (RFC 8259): the caller asks for the value it expects; nothing is stored, nothing recurses.
 *
 *     if (json_object(&json))
 *         while (json_member(&json, &scratch, &key))
 *             slice_is(key, "id") ? json_string(&json, &scratch, &id) : json_skip(&json);
 *     if (!json_end(&json))
 *         return json_problem(&json, "...", problem);
 *
 * An error is kept: every function returns false from then on, so it can be checked once, at the end. A value of another
 * kind than requested is not an error: the function returns false, the value stays unread, json_kind() returns its kind.
 * A copy of a reader is a saved position, from which the text can be read later as long as it exists.
 * Extensions of RFC 8259, like Triton's: NaN, Infinity, Inf and their negatives are numbers; a byte order mark is skipped.
 */
#ifndef PYTRITON_FRONTEND_JSON_READER_H
#define PYTRITON_FRONTEND_JSON_READER_H

#include "base/problem.h"
#include "common/buffer.h"

typedef struct {
    uint32_t depth;        /* nesting of objects and arrays; at most JSON_MAX_DEPTH */
    uint64_t values;       /* total, each key counted as one */
    uint64_t string_bytes; /* of one string, as written */
} JsonLimits;

enum { JSON_MAX_DEPTH = 256 };

typedef enum {
    JSON_NONE,
    JSON_OBJECT,
    JSON_ARRAY,
    JSON_STRING,
    JSON_NUMBER,
    JSON_TRUE,
    JSON_FALSE,
    JSON_NULL
} JsonKind;

typedef struct {
    const char *start, *at, *end;
    JsonLimits limits;
    uint64_t values;
    uint32_t depth;
    bool fresh;   /* nothing of the innermost object or array has been read */
    bool waiting; /* a value must be read next */
    uint64_t arrays[JSON_MAX_DEPTH / 64]; /* one bit per level: it is an array */
    const char *fault;                  /* what is wrong at `at`; NULL: nothing */
    ProblemKind fault_kind;
} Json;

/* Begin to read a text. Checks here that it is valid UTF-8. */
Json json_read(Slice text, const JsonLimits *limits);
/* Returns the kind of the next value; JSON_NONE: no value, or an error. */
JsonKind json_kind(Json *json);
/* "an object", "a number" ... */
const char *json_kind_name(JsonKind kind);

/* Enter an object or array. Its members or elements must be read until the end. */
bool json_object(Json *json);
bool json_array(Json *json);
/* Read the key of the next member, whose value must be read next. Returns false at the end, which leaves the object.
 * A key with escapes is in `scratch` and valid until that changes, others point into the text.
 */
bool json_member(Json *json, Buffer *scratch, Slice *key);
/* Returns whether there is another element, which must be read next; false: the array has been left. */
bool json_element(Json *json);
/* Go to the next value that is not an array, in nested arrays; `depth` is json->depth before the outermost one was
 * entered. Returns false at its end.
 */
bool json_leaf(Json *json, uint32_t depth);

/* Each reads one value. */
bool json_string(Json *json, Buffer *scratch, Slice *value);
/* Append the string's contents. */
bool json_string_to(Json *json, Buffer *text);
bool json_bool(Json *json, bool *value);
bool json_null(Json *json);
/* Read a number written as an integer and in range; others are not an error, and stay unread. */
bool json_signed(Json *json, int64_t *value);
bool json_unsigned(Json *json, uint64_t *value);
/* Read any number as the nearest double. Above the largest it is infinite, as in Triton's reader for "1e999"... */
bool json_double(Json *json, double *value);
/* Skip a value of any kind; returns its text. */
bool json_skip(Json *json);
bool json_raw(Json *json, Slice *text);

/* Returns whether everything has been read without error. */
bool json_end(Json *json);
/* Returns whether the text is malformed. */
static inline bool json_failed(const Json *json)
{
    return json->fault != NULL;
}
/* Report a malformed text as "`doing`: ... at 17". Returns false. */
bool json_problem(const Json *json, const char *doing, Problem *problem);

#endif
