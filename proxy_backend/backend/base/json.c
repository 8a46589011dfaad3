/* RFC 8259. The input comes from tritonserver or our dispatcher. Malformed text yields no values instead of an error.
 */
#include "base/json.h"

#include "common/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };
static const Json none = {NULL, NULL};

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && strchr(" \t\r\n", *at) && *at)
        at++;
    return at;
}

/* Returns the end of the next value, or NULL if it is incomplete. */
static const char *skip_value(const char *at, const char *end, int depth)
{
    at = skip_space(at, end);
    if (at >= end || depth > MAX_DEPTH)
        return NULL;
    if (*at == '"') {
        for (at++; at < end && *at != '"'; at++)
            if (*at == '\\')
                at++;
        return at < end ? at + 1 : NULL;
    }
    if (*at == '{' || *at == '[') {
        char close = *at == '{' ? '}' : ']';
        at = skip_space(at + 1, end);
        while (at && at < end && *at != close) {
            at = skip_value(at, end, depth + 1);
            at = at ? skip_space(at, end) : NULL;
            if (at && at < end && (*at == ',' || *at == ':'))
                at = skip_space(at + 1, end);
        }
        return at && at < end ? at + 1 : NULL;
    }
    const char *start = at;
    while (at < end && *at && !strchr(",:]} \t\r\n\"", *at))
        at++;
    return at > start ? at : NULL;
}

static bool member_at(const char *at, const char *end, bool keyed, JsonMember *member)
{
    at = skip_space(at, end);
    if (at >= end || *at == (keyed ? '}' : ']'))
        return false;
    member->key = none;
    if (keyed) {
        const char *colon = *at == '"' ? skip_value(at, end, 0) : NULL;
        if (colon == NULL)
            return false;
        member->key = (Json){at, colon};
        at = skip_space(colon, end);
        if (at >= end || *at != ':')
            return false;
        at = skip_space(at + 1, end);
    }
    member->next = skip_value(at, end, 0);
    member->value = (Json){at, member->next};
    return member->next != NULL;
}

static bool first(Json all, char open, JsonMember *member)
{
    const char *at = all.start ? skip_space(all.start, all.end) : NULL;
    return at && at < all.end && *at == open && member_at(at + 1, all.end, open == '{', member);
}

static bool next(Json all, bool keyed, JsonMember *member)
{
    const char *at = skip_space(member->next, all.end);
    return at < all.end && *at == ',' && member_at(at + 1, all.end, keyed, member);
}

bool json_first(Json object, JsonMember *member)
{
    return first(object, '{', member);
}

bool json_next(Json object, JsonMember *member)
{
    return next(object, true, member);
}

bool json_first_element(Json array, JsonMember *element)
{
    return first(array, '[', element);
}

bool json_next_element(Json array, JsonMember *element)
{
    return next(array, false, element);
}

Json json_find(Json object, const char *key)
{
    JsonMember member;
    for (bool more = json_first(object, &member); more; more = json_next(object, &member)) {
        size_t size = (size_t)(member.key.end - member.key.start) - 2;
        if (size == strlen(key) && memcmp(member.key.start + 1, key, size) == 0)
            return member.value; /* Only keys without escapes are looked up. */
    }
    return none;
}

static bool json_is_string(Json value)
{
    return value.start && value.end - value.start >= 2 && *value.start == '"';
}

bool json_is(Json value, const char *literal)
{
    size_t size = strlen(literal);
    return value.start && (size_t)(value.end - value.start) == size && memcmp(value.start, literal, size) == 0;
}

static unsigned hex4(const char *at)
{
    char digits[5] = {0};
    memcpy(digits, at, 4);
    return (unsigned)strtoul(digits, NULL, 16);
}

char *json_string(Json value)
{
    static const char escapes[] = "\"\"\\\\//b\bf\fn\nr\rt\t";
    if (!json_is_string(value))
        return NULL;
    /* An escape sequence is never shorter than its character. */
    char *text = malloc((size_t)(value.end - value.start)), *out = text;
    const char *end = value.end - 1;
    for (const char *at = value.start + 1; text && at < end; at++) {
        if (*at != '\\') {
            *out++ = *at;
            continue;
        }
        at++;
        if (*at == 'u' && end - at > 4) {
            unsigned code = hex4(at + 1);
            at += 4;
            if (code >= 0xd800 && code < 0xdc00 && end - at > 6 && at[1] == '\\' && at[2] == 'u') {
                code = 0x10000 + ((code - 0xd800) << 10) + (hex4(at + 3) - 0xdc00);
                at += 6;
            }
            out += utf8_encode(code, out);
            continue;
        }
        for (const char *escape = escapes; *escape; escape += 2)
            if (*escape == *at)
                *out++ = escape[1];
    }
    if (text)
        *out = 0;
    return text;
}
