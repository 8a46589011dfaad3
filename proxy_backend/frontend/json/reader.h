/* A pull reader for JSON (RFC 8259): the caller asks for the kind of value that it expects. It stores nothing, and does
 * not recurse.
 *
 *     if (json_object(&json))
 *         while (json_member(&json, &scratch, &key))
 *             slice_is(key, "id") ? json_string(&json, &scratch, &id) : json_skip(&json);
 *     if (!json_end(&json))
 *         return json_problem(&json, "...", problem);
 *
 * After an error, every function returns false, so it is enough to check once, at the end. A value of another kind than
 * requested is not an error: the function returns false, the value stays unread, and json_kind returns its kind. A copy
 * of a reader is a saved position, from which the text can be read later, as long as it exists.
 *
 * Like Triton's reader, it accepts NaN, Infinity, Inf and their negatives as numbers, and skips a byte order mark.
 */
#ifndef PYTRITON_FRONTEND_JSON_READER_H
#define PYTRITON_FRONTEND_JSON_READER_H

#include "base/problem.h"
#include "common/buffer.h"

typedef struct {
    uint32_t depth; /* maximum nesting of objects and arrays, at most JSON_MAX_DEPTH */
    uint64_t values; /* maximum number of values, including keys */
    uint64_t string_bytes; /* maximum size of a string, as written */
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
    bool fresh; /* nothing of the innermost object or array has been read yet */
    bool waiting; /* a value has to be read next */
    uint64_t arrays[JSON_MAX_DEPTH / 64]; /* for each level, one bit: whether it is an array */
    const char *fault; /* the error at `at`, or NULL */
    ProblemKind fault_kind;
} Json;

/* Begin to read a text. Checks the whole text for valid UTF-8. */
Json json_read(Slice text, const JsonLimits *limits);
/* Returns the kind of the next value, or JSON_NONE if there is none or after an error. */
JsonKind json_kind(Json *json);
/* Returns a phrase for errors, such as "an object" or "a number". */
const char *json_kind_name(JsonKind kind);

/* Enter an object or array. All its members or elements must then be read. */
bool json_object(Json *json);
bool json_array(Json *json);
/* Read the key of the next member. The member's value must be read next. Returns false at the end, after leaving the
 * object. A key with escapes is in `scratch`, and valid until that changes; others point into the text.
 */
bool json_member(Json *json, Buffer *scratch, Slice *key);
/* Returns whether there is another element, which must be read next. Otherwise, the array has been left. */
bool json_element(Json *json);
/* Go to the next value in nested arrays that is not itself an array. `depth` is json->depth before the outermost array
 * was entered. Returns false after the last one.
 */
bool json_leaf(Json *json, uint32_t depth);

/* Read one value of this kind. */
bool json_string(Json *json, Buffer *scratch, Slice *value);
/* Append the contents of a string to `text`. */
bool json_string_to(Json *json, Buffer *text);
bool json_bool(Json *json, bool *value);
bool json_null(Json *json);
/* Read a number that is written as an integer and is in range. Any other number stays unread, which is not an error. */
bool json_signed(Json *json, int64_t *value);
bool json_unsigned(Json *json, uint64_t *value);
/* Read any number as the nearest double. One that is too large becomes infinite, as in Triton. */
bool json_double(Json *json, double *value);
/* Skip a value of any kind. json_raw returns its text. */
bool json_skip(Json *json);
bool json_raw(Json *json, Slice *text);

/* Returns whether everything was read without an error. */
bool json_end(Json *json);
/* Returns whether an error has occurred. */
static inline bool json_failed(const Json *json)
{
    return json->fault != NULL;
}
/* Set a problem from the error, such as "`doing`: ... at 17". Returns false. */
bool json_problem(const Json *json, const char *doing, Problem *problem);

#endif
