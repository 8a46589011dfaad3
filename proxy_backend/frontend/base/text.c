#include "base/text.h"

#include "memory/blocks.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MIN_ROOM = 256,
    LARGE = 1 << 20, /* larger reservations are exact: for a body of known size */
};

void text_free(Text *text)
{
    block_release(text->data);
    *text = (Text){0};
}

void text_clear(Text *text)
{
    text->size = 0;
    text->failed = false;
}

void text_reset(Text *text, size_t kept)
{
    if (text->room > kept)
        text_free(text);
    text_clear(text);
}

/* Move the contents to larger memory. Returns NULL without memory, and changes nothing. */
static char *larger(Text *text, size_t room)
{
    if (room < BLOCK_MIN_BYTES || text->room >= BLOCK_MIN_BYTES)
        return realloc(text->data, room);
    char *data = block_allocate(room);
    if (data == NULL)
        return NULL;
    if (text->size)
        memcpy(data, text->data, text->size);
    free(text->data);
    return data;
}

bool text_reserve(Text *text, size_t more)
{
    if (more <= text->room - text->size)
        return true;
    size_t needed, room;
    if (__builtin_add_overflow(text->size, more, &needed)) {
        text->failed = true;
        return false;
    }
    /* Double the size, so that many small pieces cost little. */
    if (more >= LARGE || __builtin_mul_overflow(text->room, (size_t)2, &room) || room < needed)
        room = needed;
    if (room < MIN_ROOM)
        room = MIN_ROOM;
    char *data = larger(text, room);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->room = room;
    return true;
}

char *text_extend(Text *text, size_t size)
{
    if (!text_reserve(text, size ? size : 1))
        return NULL;
    char *place = text->data + text->size;
    text->size += size;
    return place;
}

void text_put(Text *text, const void *bytes, size_t size)
{
    if (size && text_reserve(text, size)) {
        memcpy(text->data + text->size, bytes, size);
        text->size += size;
    }
}

void text_put_slice(Text *text, Slice slice)
{
    text_put(text, slice.start, slice.size);
}

void text_put_string(Text *text, const char *string)
{
    text_put(text, string, strlen(string));
}

void text_put_char(Text *text, char byte)
{
    text_put(text, &byte, 1);
}

void text_put_unsigned(Text *text, uint64_t value)
{
    char digits[20], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    text_put(text, at, (size_t)(digits + sizeof digits - at));
}

void text_put_signed(Text *text, int64_t value)
{
    if (value < 0)
        text_put_char(text, '-');
    text_put_unsigned(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void text_format_list(Text *text, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (size < 0 || !text_reserve(text, (size_t)size + 1)) {
        text->failed = true;
        return;
    }
    vsnprintf(text->data + text->size, (size_t)size + 1, format, arguments);
    text->size += (size_t)size;
}

void text_format(Text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    text_format_list(text, format, arguments);
    va_end(arguments);
}

const char *text_string(Text *text)
{
    if (text->failed || !text_reserve(text, 1))
        return NULL;
    text->data[text->size] = '\0';
    return text->data;
}

char *text_take(Text *text)
{
    char *string = (char *)(uintptr_t)text_string(text);
    if (string == NULL) {
        text_free(text);
        return NULL;
    }
    *text = (Text){0};
    return string;
}
