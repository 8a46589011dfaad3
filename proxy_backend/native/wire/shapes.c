/* Undeclared fields: an array may have more elements than declared, since later versions append theirs; a map may
 * not.
 */
#define _GNU_SOURCE
#include "wire/shapes.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool fits(Reader *reader, const Shape *shape, Misfit *misfit);

/* Record the error. Returns false. */
static bool wrong(Misfit *misfit, const char *what)
{
    snprintf(misfit->text, sizeof misfit->text, " %s", what);
    return false;
}

/* Prefix the error with its place. Returns false. */
__attribute__((format(printf, 2, 3))) static bool within(Misfit *misfit, const char *where, ...)
{
    Misfit whole;
    va_list values;
    va_start(values, where);
    int size = vsnprintf(whole.text, sizeof whole.text, where, values);
    va_end(values);
    if (size >= 0 && (size_t)size < sizeof whole.text)
        snprintf(whole.text + size, sizeof whole.text - (size_t)size, "%s", misfit->text);
    *misfit = whole;
    return false;
}

static bool list_fits(Reader *reader, const Shape *item, Misfit *misfit)
{
    if (kind_of(reader) != KIND_ARRAY)
        return wrong(misfit, "is not an array");
    uint32_t count = get_array(reader);
    if (reader->malformed)
        return wrong(misfit, "is cut off");
    for (uint32_t i = 0; i < count; i++)
        if (!fits(reader, item, misfit))
            return within(misfit, "[%u]", i);
    return true;
}

static bool text_fits(Reader *reader, const char *const *choices, Misfit *misfit)
{
    if (kind_of(reader) != KIND_TEXT)
        return wrong(misfit, "is not a string");
    Text text = get_text(reader);
    if (reader->malformed)
        return wrong(misfit, "is cut off");
    if (!is_utf8(text))
        return wrong(misfit, "is not valid UTF-8");
    bool chosen = choices == NULL;
    for (; !chosen && *choices; choices++)
        chosen = text_is(text, *choices);
    return chosen || wrong(misfit, "is none of the texts that it may be");
}

static bool texts_fit(Reader *reader, Misfit *misfit)
{
    if (kind_of(reader) != KIND_MAP)
        return wrong(misfit, "is not a map");
    uint32_t pairs = get_map(reader);
    if (reader->malformed)
        return wrong(misfit, "is cut off");
    for (uint32_t i = 0; i < pairs; i++)
        if (!text_fits(reader, NULL, misfit) || !text_fits(reader, NULL, misfit))
            return within(misfit, "[…]");
    return true;
}

/* Check the fields of an array with this many elements left. */
static bool elements_fit(Reader *reader, const Declared *declared, uint32_t left, Misfit *misfit)
{
    uint32_t taken = 0;
    for (; taken < declared->count; taken++) {
        const Field *field = &declared->fields[taken];
        if (taken == left && field->required)
            return wrong(misfit, "is missing") || within(misfit, ".%s", field->name);
        if (taken == left)
            break;
        if (!fits(reader, &field->shape, misfit))
            return within(misfit, ".%s", field->name);
    }
    skip_rest(reader, left, taken);
    return !reader->malformed || wrong(misfit, "is cut off");
}

/* Check the fields of a map with this many pairs, whose type names the message. */
static bool pairs_fit(Reader *reader, const Declared *declared, uint32_t pairs, Misfit *misfit)
{
    uint64_t seen = 0;
    for (; pairs; pairs--) {
        Text key = get_text(reader);
        uint32_t index = 0;
        while (index < declared->count && !text_is(key, declared->fields[index].name))
            index++;
        if (index < declared->count) {
            if (!fits(reader, &declared->fields[index].shape, misfit))
                return within(misfit, ".%s", declared->fields[index].name);
            seen |= UINT64_C(1) << index;
        } else if (!text_is(key, "type") || !text_is(get_text(reader), declared->name)) {
            return wrong(misfit, "has a field that is not declared");
        }
    }
    for (uint32_t index = 0; index < declared->count; index++)
        if (declared->fields[index].required && !(seen >> index & 1))
            return wrong(misfit, "is missing") || within(misfit, ".%s", declared->fields[index].name);
    return true;
}

static bool struct_fits(Reader *reader, const Declared *declared, Misfit *misfit)
{
    if (kind_of(reader) != KIND_ARRAY)
        return wrong(misfit, "is not an array");
    uint32_t count = get_array(reader);
    return reader->malformed ? wrong(misfit, "is cut off") : elements_fit(reader, declared, count, misfit);
}

/* Check a value without nested values. */
static bool plain_fits(Reader *reader, bool right, const char *what, Misfit *misfit)
{
    if (!right)
        return wrong(misfit, what);
    skip(reader, 0);
    return !reader->malformed || wrong(misfit, "is cut off");
}

static bool fits(Reader *reader, const Shape *shape, Misfit *misfit)
{
    if (shape->kind == SHAPE_INT && reader->next < reader->end && *reader->next < 0x80) { /* most integers are small */
        reader->next++;
        return true;
    }
    Kind kind = kind_of(reader);
    if (shape->optional && kind == KIND_NIL)
        return get_nil(reader);
    switch (shape->kind) {
    case SHAPE_INT:
        return plain_fits(reader, kind == KIND_INT, "is not an integer", misfit);
    case SHAPE_FLOAT:
        return plain_fits(reader, kind == KIND_INT || kind == KIND_FLOAT, "is not a number", misfit);
    case SHAPE_BOOL:
        return plain_fits(reader, kind == KIND_BOOL, "is not a boolean", misfit);
    case SHAPE_INT_OR_TEXT:
        if (kind != KIND_TEXT)
            return plain_fits(reader, kind == KIND_INT, "is neither an integer nor text", misfit);
        return text_fits(reader, NULL, misfit);
    case SHAPE_TEXT:
        return text_fits(reader, shape->choices, misfit);
    case SHAPE_TEXTS:
        return texts_fit(reader, misfit);
    case SHAPE_LIST:
        return list_fits(reader, shape->item, misfit);
    case SHAPE_STRUCT:
        return struct_fits(reader, shape->declared, misfit);
    }
    return false;
}

/* Returns the name of a message: an array's first element, or a map's type. */
static Text name_of(Reader message)
{
    if (kind_of(&message) == KIND_ARRAY)
        return get_array(&message) ? get_text(&message) : (Text){"", 0};
    for (uint32_t pairs = get_map(&message); pairs && !message.malformed; pairs--) {
        if (text_is(get_text(&message), "type"))
            return get_text(&message);
        skip(&message, 0);
    }
    return (Text){"", 0};
}

bool message_fits(Reader message, const Declared *const *messages, Misfit *misfit)
{
    Text name = name_of(message);
    bool is_map = kind_of(&message) == KIND_MAP;
    while (*messages && !(text_is(name, (*messages)->name) && (*messages)->is_map == is_map))
        messages++;
    const Declared *declared = *messages;
    if (declared == NULL) {
        snprintf(misfit->text, sizeof misfit->text, "something else than a message");
        return false;
    }
    uint32_t count = is_map ? get_map(&message) : get_array(&message);
    if (!is_map)
        get_text(&message);
    bool right =
        is_map ? pairs_fit(&message, declared, count, misfit) : elements_fit(&message, declared, count - 1, misfit);
    if (right && message.next != message.end)
        right = wrong(misfit, "has something behind it");
    return right || within(misfit, "a malformed message: %s", declared->name);
}
