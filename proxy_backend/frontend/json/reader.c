/* The structure of JSON: objects, arrays, and skipped values. strings.c and numbers.c read the rest. */
#include "json/reader.h"

#include "common/utf8.h"
#include "json/numbers.h"
#include "json/strings.h"

static bool set_fault(Json *json, ProblemKind kind, const char *what)
{
    if (json->fault == NULL) {
        json->fault = what;
        json->fault_kind = kind;
    }
    return false;
}

static bool set_invalid(Json *json, const char *what)
{
    return set_fault(json, PROBLEM_INVALID, what);
}

Json json_read(Slice text, const JsonLimits *limits)
{
    if (slice_starts(text, "\xef\xbb\xbf"))
        text = slice_after(text, 3);
    const char *start = text.start ? text.start : "";
    Json json = {.start = start, .at = start, .end = start + text.size, .limits = *limits, .waiting = true};
    if (json.limits.depth > JSON_MAX_DEPTH)
        json.limits.depth = JSON_MAX_DEPTH;
    size_t valid = utf8_valid_prefix(start, text.size);
    if (valid < text.size) {
        json.at = start + valid;
        set_invalid(&json, "Invalid UTF-8");
    }
    return json;
}

static void pass_space(Json *json)
{
    while (json->at < json->end && (*json->at == ' ' || *json->at == '\n' || *json->at == '\r' || *json->at == '\t'))
        json->at++;
}

/* A table is fast; this is called for every value. */
static JsonKind kind_of(unsigned char byte)
{
    static const uint8_t kinds[256] = {['{'] = JSON_OBJECT,
        ['['] = JSON_ARRAY,
        ['"'] = JSON_STRING,
        ['-'] = JSON_NUMBER,
        ['0' ... '9'] = JSON_NUMBER,
        ['N'] = JSON_NUMBER,
        ['I'] = JSON_NUMBER,
        ['t'] = JSON_TRUE,
        ['f'] = JSON_FALSE,
        ['n'] = JSON_NULL};
    return (JsonKind)kinds[byte];
}

JsonKind json_kind(Json *json)
{
    if (json->fault || !json->waiting)
        return JSON_NONE;
    pass_space(json);
    if (json->at == json->end) {
        set_invalid(json, json->at == json->start ? "The document is empty" : "The text is truncated");
        return JSON_NONE;
    }
    JsonKind kind = kind_of((unsigned char)*json->at);
    if (kind == JSON_NONE)
        set_invalid(json, "Invalid value");
    return kind;
}

const char *json_kind_name(JsonKind kind)
{
    static const char *const names[] = {
        "nothing", "an object", "an array", "a string", "a number", "true", "false", "null"};
    return names[kind];
}

/* Count the value that begins here. Returns false if there are too many. */
static bool count_value(Json *json)
{
    if (json->values++ >= json->limits.values)
        return set_fault(json, PROBLEM_TOO_LARGE, "There are more values than the limit");
    json->waiting = false;
    return true;
}

static bool in_array(const Json *json)
{
    uint32_t level = json->depth - 1;
    return (json->arrays[level / 64] >> (level % 64) & 1) != 0;
}

static bool enter(Json *json, JsonKind kind)
{
    if (json_kind(json) != kind || !count_value(json))
        return false;
    if (json->depth >= json->limits.depth)
        return set_fault(json, PROBLEM_TOO_LARGE, "Objects and arrays are nested deeper than the limit");
    uint64_t bit = (uint64_t)1 << (json->depth % 64), *word = &json->arrays[json->depth / 64];
    *word = kind == JSON_ARRAY ? *word | bit : *word & ~bit;
    json->depth++;
    json->at++;
    json->fresh = true;
    return true;
}

bool json_object(Json *json)
{
    return enter(json, JSON_OBJECT);
}

bool json_array(Json *json)
{
    return enter(json, JSON_ARRAY);
}

/* Go to the next member or element of the innermost object or array, past the comma. Returns false at its end, or on
 * an error.
 */
static bool next_part(Json *json, char close, const char *missing)
{
    if (json->fault || json->waiting || json->depth == 0 || in_array(json) != (close == ']'))
        return json->fault ? false : set_invalid(json, "The value does not have the expected type");
    pass_space(json);
    if (json->at == json->end)
        return set_invalid(json,
            !json->fresh       ? missing
                : close == '}' ? "Missing a name for object member"
                               : "Invalid value");
    if (*json->at == close) {
        json->at++;
        json->depth--;
        json->fresh = false;
        return false;
    }
    if (json->fresh) {
        json->fresh = false;
        return true;
    }
    if (*json->at != ',')
        return set_invalid(json, missing);
    json->at++;
    return true;
}

bool json_element(Json *json)
{
    json->waiting |= next_part(json, ']', "Missing a comma or ] after an array element");
    return json->waiting && json->fault == NULL;
}

bool json_leaf(Json *json, uint32_t depth)
{
    while (json->fault == NULL && json->depth > depth) {
        if (!json_element(json))
            continue;
        if (json_kind(json) != JSON_ARRAY)
            return json->fault == NULL;
        json_array(json);
    }
    return false;
}

/* ── strings ──────────────────────────────────────────────────────────────────────────────────────── */

/* Skip a string from its opening quote. Its contents are appended to `text` unless it is NULL. */
static bool pass_string(Json *json, Buffer *text, bool *escaped)
{
    const char *begin = json->at, *what = json_read_string(&json->at, json->end, text, escaped);
    if (what)
        return set_invalid(json, what);
    if ((uint64_t)(json->at - begin) > json->limits.string_bytes)
        return set_fault(json, PROBLEM_TOO_LARGE, "A string is longer than the limit");
    return true;
}

/* Read a string. The result is a view of the input if it has no escapes, otherwise a copy in `scratch`. */
static bool read_string(Json *json, Buffer *scratch, Slice *value)
{
    const char *begin = json->at;
    bool escaped;
    if (!pass_string(json, NULL, &escaped))
        return false;
    *value = (Slice){begin + 1, (size_t)(json->at - begin) - 2};
    if (!escaped)
        return true;
    json->at = begin;
    buffer_clear(scratch);
    if (!pass_string(json, scratch, &escaped))
        return false;
    if (scratch->failed)
        return set_fault(json, PROBLEM_UNAVAILABLE, "Out of memory");
    *value = buffer_slice(scratch);
    return true;
}

bool json_string(Json *json, Buffer *scratch, Slice *value)
{
    return json_kind(json) == JSON_STRING && count_value(json) && read_string(json, scratch, value);
}

bool json_string_to(Json *json, Buffer *text)
{
    bool escaped;
    return json_kind(json) == JSON_STRING && count_value(json) && pass_string(json, text, &escaped);
}

/* Read the name of a member, or skip it if `key` is NULL. Returns false after the last one, or on an error. */
static bool read_name(Json *json, Buffer *scratch, Slice *key)
{
    bool escaped;
    if (!next_part(json, '}', "Missing a comma or } after an object member"))
        return false;
    pass_space(json);
    if (json->at == json->end || *json->at != '"')
        return set_invalid(json, "Missing a name for object member");
    if (!count_value(json) || !(key ? read_string(json, scratch, key) : pass_string(json, NULL, &escaped)))
        return false;
    pass_space(json);
    if (json->at == json->end || *json->at != ':')
        return set_invalid(json, "Missing a colon after a name of object member");
    json->at++;
    json->waiting = true;
    return true;
}

bool json_member(Json *json, Buffer *scratch, Slice *key)
{
    return read_name(json, scratch, key);
}

/* ── the rest ─────────────────────────────────────────────────────────────────────────────────────── */

static bool read_literal(Json *json, const char *word)
{
    if (!count_value(json))
        return false;
    if (!slice_starts((Slice){json->at, (size_t)(json->end - json->at)}, word))
        return set_invalid(json, "Invalid value");
    json->at += strlen(word);
    return true;
}

bool json_bool(Json *json, bool *value)
{
    JsonKind kind = json_kind(json);
    *value = kind == JSON_TRUE;
    return (kind == JSON_TRUE || kind == JSON_FALSE) && read_literal(json, *value ? "true" : "false");
}

bool json_null(Json *json)
{
    return json_kind(json) == JSON_NULL && read_literal(json, "null");
}

/* Read the next value if it is a number, but do not move past it. */
static bool peek_number(Json *json, Number *number)
{
    if (json_kind(json) != JSON_NUMBER)
        return false;
    const char *what = number_read((Slice){json->at, (size_t)(json->end - json->at)}, number);
    return what ? set_invalid(json, what) : true;
}

bool json_signed(Json *json, int64_t *value)
{
    Number read;
    if (!peek_number(json, &read) || !number_signed(&read, value) || !count_value(json))
        return false;
    json->at += read.text.size;
    return true;
}

bool json_unsigned(Json *json, uint64_t *value)
{
    Number read;
    if (!peek_number(json, &read) || !number_unsigned(&read, value) || !count_value(json))
        return false;
    json->at += read.text.size;
    return true;
}

bool json_double(Json *json, double *value)
{
    Number read;
    if (!peek_number(json, &read) || !count_value(json))
        return false;
    if (!number_double(&read, value))
        return set_invalid(json, "Number too big to be stored in double");
    json->at += read.text.size;
    return true;
}

/* Skip a value that is neither an object nor an array. */
static bool pass_simple(Json *json, JsonKind kind)
{
    bool ignored;
    Number read;
    switch (kind) {
    case JSON_STRING:
        return count_value(json) && pass_string(json, NULL, &ignored);
    case JSON_NUMBER:
        if (!peek_number(json, &read) || !count_value(json))
            return false;
        json->at += read.text.size;
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        return json_bool(json, &ignored);
    default:
        return json_null(json);
    }
}

bool json_skip(Json *json)
{
    uint32_t depth = json->depth;
    do {
        JsonKind kind = json_kind(json);
        if (kind == JSON_NONE)
            return false;
        if (kind != JSON_OBJECT && kind != JSON_ARRAY) {
            if (!pass_simple(json, kind))
                return false;
        } else if (!enter(json, kind)) {
            return false;
        }
        /* Leave the objects and arrays that end here, up to the next value. */
        while (json->fault == NULL && json->depth > depth &&
            !(in_array(json) ? json_element(json) : read_name(json, NULL, NULL)))
            ;
    } while (json->fault == NULL && json->depth > depth);
    return json->fault == NULL;
}

bool json_raw(Json *json, Slice *text)
{
    if (json_kind(json) == JSON_NONE)
        return false;
    const char *begin = json->at;
    bool read = json_skip(json);
    *text = (Slice){begin, (size_t)(json->at - begin)};
    return read;
}

bool json_end(Json *json)
{
    if (json->fault)
        return false;
    if (json->waiting || json->depth)
        return set_invalid(json, "The document was not read to its end");
    pass_space(json);
    if (json->at < json->end)
        return set_invalid(json, "The document root must not be followed by other values");
    return true;
}

bool json_problem(const Json *json, const char *doing, Problem *problem)
{
    if (json->fault == NULL)
        return false;
    return problem_set(
        problem, json->fault_kind, "%s: %s. at %zu", doing, json->fault, (size_t)(json->at - json->start));
}
