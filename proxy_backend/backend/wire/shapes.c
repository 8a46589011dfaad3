/* An array may have more elements than declared, because later versions append fields. A map may not. */
#define _GNU_SOURCE
#include "wire/shapes.h"

#include "common/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool check_value(Reader *reader, const Shape *shape, ShapeError *shape_error);

/* Set the error. Returns false. */
static bool set_error(ShapeError *shape_error, const char *what)
{
    snprintf(shape_error->text, sizeof shape_error->text, " %s", what);
    return false;
}

/* Prepend a place to the error. Returns false. */
__attribute__((format(printf, 2, 3))) static bool prefix_error(ShapeError *shape_error, const char *where, ...)
{
    ShapeError whole;
    va_list values;
    va_start(values, where);
    int size = vsnprintf(whole.text, sizeof whole.text, where, values);
    va_end(values);
    if (size >= 0 && (size_t)size < sizeof whole.text)
        snprintf(whole.text + size, sizeof whole.text - (size_t)size, "%s", shape_error->text);
    *shape_error = whole;
    return false;
}

static bool list_fits(Reader *reader, const Shape *item, ShapeError *shape_error)
{
    if (msgpack_kind(reader) != MSGPACK_ARRAY)
        return set_error(shape_error, "is not an array");
    uint32_t count = msgpack_get_array(reader);
    if (reader->malformed)
        return set_error(shape_error, "is cut off");
    for (uint32_t i = 0; i < count; i++)
        if (!check_value(reader, item, shape_error))
            return prefix_error(shape_error, "[%u]", i);
    return true;
}

static bool text_fits(Reader *reader, const char *const *choices, ShapeError *shape_error)
{
    if (msgpack_kind(reader) != MSGPACK_TEXT)
        return set_error(shape_error, "is not a string");
    Slice text = msgpack_get_text(reader);
    if (reader->malformed)
        return set_error(shape_error, "is cut off");
    if (!utf8_is_valid(text))
        return set_error(shape_error, "is not valid UTF-8");
    bool chosen = choices == NULL;
    for (; !chosen && *choices; choices++)
        chosen = slice_is(text, *choices);
    return chosen || set_error(shape_error, "is not one of the allowed values");
}

static bool texts_fit(Reader *reader, ShapeError *shape_error)
{
    if (msgpack_kind(reader) != MSGPACK_MAP)
        return set_error(shape_error, "is not a map");
    uint32_t pairs = msgpack_get_map(reader);
    if (reader->malformed)
        return set_error(shape_error, "is cut off");
    for (uint32_t i = 0; i < pairs; i++)
        if (!text_fits(reader, NULL, shape_error) || !text_fits(reader, NULL, shape_error))
            return prefix_error(shape_error, "[…]");
    return true;
}

/* Check the fields of an array that has `left` more elements. */
static bool elements_fit(Reader *reader, const Declared *declared, uint32_t left, ShapeError *shape_error)
{
    uint32_t taken = 0;
    for (; taken < declared->count; taken++) {
        const Field *field = &declared->fields[taken];
        if (taken == left && field->required)
            return set_error(shape_error, "is missing") || prefix_error(shape_error, ".%s", field->name);
        if (taken == left)
            break;
        if (!check_value(reader, &field->shape, shape_error))
            return prefix_error(shape_error, ".%s", field->name);
    }
    msgpack_skip_rest(reader, left, taken);
    return !reader->malformed || set_error(shape_error, "is cut off");
}

/* Check the fields of a map of `pairs` pairs, whose "type" names the message. */
static bool pairs_fit(Reader *reader, const Declared *declared, uint32_t pairs, ShapeError *shape_error)
{
    uint64_t seen = 0;
    for (; pairs; pairs--) {
        Slice key = msgpack_get_text(reader);
        uint32_t index = 0;
        while (index < declared->count && !slice_is(key, declared->fields[index].name))
            index++;
        if (index < declared->count) {
            if (!check_value(reader, &declared->fields[index].shape, shape_error))
                return prefix_error(shape_error, ".%s", declared->fields[index].name);
            seen |= UINT64_C(1) << index;
        } else if (!slice_is(key, "type") || !slice_is(msgpack_get_text(reader), declared->name)) {
            return set_error(shape_error, "has an undeclared field");
        }
    }
    for (uint32_t index = 0; index < declared->count; index++)
        if (declared->fields[index].required && !(seen >> index & 1))
            return set_error(shape_error, "is missing") ||
                prefix_error(shape_error, ".%s", declared->fields[index].name);
    return true;
}

static bool struct_fits(Reader *reader, const Declared *declared, ShapeError *shape_error)
{
    if (msgpack_kind(reader) != MSGPACK_ARRAY)
        return set_error(shape_error, "is not an array");
    uint32_t count = msgpack_get_array(reader);
    return reader->malformed ? set_error(shape_error, "is cut off")
                             : elements_fit(reader, declared, count, shape_error);
}

/* Read a value that contains no others, unless it has the wrong kind. */
static bool plain_fits(Reader *reader, bool right, const char *what, ShapeError *shape_error)
{
    if (!right)
        return set_error(shape_error, what);
    msgpack_skip(reader, 0);
    return !reader->malformed || set_error(shape_error, "is cut off");
}

static bool check_value(Reader *reader, const Shape *shape, ShapeError *shape_error)
{
    /* Fast path: most integers are small. */
    if (shape->kind == SHAPE_INT && reader->next < reader->end && *reader->next < 0x80) {
        reader->next++;
        return true;
    }
    MsgpackKind kind = msgpack_kind(reader);
    if (shape->optional && kind == MSGPACK_NIL)
        return msgpack_get_nil(reader);
    switch (shape->kind) {
    case SHAPE_INT:
        return plain_fits(reader, kind == MSGPACK_INT, "is not an integer", shape_error);
    case SHAPE_FLOAT:
        return plain_fits(reader, kind == MSGPACK_INT || kind == MSGPACK_FLOAT, "is not a number", shape_error);
    case SHAPE_BOOL:
        return plain_fits(reader, kind == MSGPACK_BOOL, "is not a boolean", shape_error);
    case SHAPE_INT_OR_TEXT:
        if (kind != MSGPACK_TEXT)
            return plain_fits(reader, kind == MSGPACK_INT, "is neither an integer nor text", shape_error);
        return text_fits(reader, NULL, shape_error);
    case SHAPE_TEXT:
        return text_fits(reader, shape->choices, shape_error);
    case SHAPE_TEXTS:
        return texts_fit(reader, shape_error);
    case SHAPE_LIST:
        return list_fits(reader, shape->item, shape_error);
    case SHAPE_STRUCT:
        return struct_fits(reader, shape->declared, shape_error);
    }
    return false;
}

/* Returns the name of a message: the first element of an array, or the "type" of a map. */
static Slice name_of(Reader message)
{
    if (msgpack_kind(&message) == MSGPACK_ARRAY)
        return msgpack_get_array(&message) ? msgpack_get_text(&message) : (Slice){"", 0};
    for (uint32_t pairs = msgpack_get_map(&message); pairs && !message.malformed; pairs--) {
        if (slice_is(msgpack_get_text(&message), "type"))
            return msgpack_get_text(&message);
        msgpack_skip(&message, 0);
    }
    return (Slice){"", 0};
}

bool message_is_valid(Reader message, const Declared *const *messages, ShapeError *shape_error)
{
    Slice name = name_of(message);
    bool is_map = msgpack_kind(&message) == MSGPACK_MAP;
    while (*messages && !(slice_is(name, (*messages)->name) && (*messages)->is_map == is_map))
        messages++;
    const Declared *declared = *messages;
    if (declared == NULL) {
        snprintf(shape_error->text, sizeof shape_error->text, "something other than a message");
        return false;
    }
    uint32_t count = is_map ? msgpack_get_map(&message) : msgpack_get_array(&message);
    if (!is_map)
        msgpack_get_text(&message);
    bool right = is_map ? pairs_fit(&message, declared, count, shape_error)
                        : elements_fit(&message, declared, count - 1, shape_error);
    if (right && message.next != message.end)
        right = set_error(shape_error, "is followed by more data");
    return right || prefix_error(shape_error, "a malformed message: %s", declared->name);
}
