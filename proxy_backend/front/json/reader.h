/* A pull reader of JSON (RFC 8259): whoever reads asks for what it expects, nothing is kept, nothing recurses.
 *
 *     if (json_object(&json))
 *         while (json_member(&json, &scratch, &key))
 *             slice_is(key, "id") ? json_string(&json, &scratch, &id) : json_skip(&json);
 *     if (!json_end(&json))
 *         return json_problem(&json, "...", problem);
 *
 * A fault is kept: every function says false from then on, so it can be looked at once, at the end. What is asked for
 * and is of another kind is no fault: the function says false, the value is still to be read, json_kind() says what it is.
 * A reader is a value: a copy of it is a saved position, from which may be read later as long as the text stays.
 * Besides RFC 8259, as Triton's does: NaN, Infinity, Inf and their negatives are numbers; a byte order mark is skipped.
 */
#ifndef PYTRITON_FRONT_JSON_READER_H
#define PYTRITON_FRONT_JSON_READER_H

#include "base/problem.h"
#include "base/text.h"

typedef struct {
    uint32_t depth;        /* of objects and arrays in each other; at most JSON_DEEPEST */
    uint64_t values;       /* in all, each key counted as one */
    uint64_t string_bytes; /* of one string, as it is written */
} JsonLimits;

enum { JSON_DEEPEST = 256 };

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
    bool waiting; /* a value is to be read next */
    uint64_t arrays[JSON_DEEPEST / 64]; /* of each level, one bit: it is an array */
    const char *fault;                  /* what is wrong at `at`; NULL: nothing */
    ProblemKind fault_kind;
} Json;

/* Read a text, whose first value comes next. It is looked through for valid UTF-8 here. */
Json json_read(Slice text, const JsonLimits *limits);
/* What comes next; JSON_NONE: no value, or a fault. */
JsonKind json_kind(Json *json);
/* "an object", "a number" ... */
const char *json_kind_name(JsonKind kind);

/* Go into an object or array. Its members or elements must be asked for until there are no more. */
bool json_object(Json *json);
bool json_array(Json *json);
/* The key of the next member, whose value is to be read then; false: there are no more, and it has been left. A key with
 * escapes lies in `scratch` and is valid until that changes, others lie in the text. */
bool json_member(Json *json, Text *scratch, Slice *key);
/* Whether there is one more element, to be read then; false: the array has been left. */
bool json_element(Json *json);
/* Go to the next value that is no array, in arrays that lie in each other, of which `depth` was json->depth before the outermost
 * was entered; false: that has been left. */
bool json_leaf(Json *json, uint32_t depth);

/* Each reads one value. */
bool json_string(Json *json, Text *scratch, Slice *value);
/* Append what the string says. */
bool json_string_to(Json *json, Text *text);
bool json_bool(Json *json, bool *value);
bool json_null(Json *json);
/* A number that is written as an integer and in range; others are no fault, and are still to be read. */
bool json_signed(Json *json, int64_t *value);
bool json_unsigned(Json *json, uint64_t *value);
/* Any number, as the double that is nearest. Beyond the largest it is infinite, as it is in Triton's for "1e999"... */
bool json_double(Json *json, double *value);
/* Pass over a value, whatever it is; its text. */
bool json_skip(Json *json);
bool json_raw(Json *json, Slice *text);

/* Whether all has been read and is without fault. */
bool json_end(Json *json);
/* Whether something was wrong with the text itself. */
static inline bool json_failed(const Json *json)
{
    return json->fault != NULL;
}
/* Say what is wrong with the text, if that is so: "`doing`: ... at 17". Returns false. */
bool json_problem(const Json *json, const char *doing, Problem *problem);

#endif
