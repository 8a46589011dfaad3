#include "common/buffer.h"

#include "common/blocks.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    MIN_ROOM = 256,
    LARGE = 1 << 20, /* reserve exactly from this size on, since it is a body of known size */
};

void buffer_free(Buffer *buffer)
{
    block_release(buffer->data);
    *buffer = (Buffer){0};
}

void buffer_clear(Buffer *buffer)
{
    buffer->size = 0;
    buffer->failed = false;
}

void buffer_reset(Buffer *buffer, size_t kept)
{
    if (buffer->room > kept)
        buffer_free(buffer);
    buffer_clear(buffer);
}

/* Move the contents to larger memory. Returns NULL without memory; nothing changes then. */
static char *grow(Buffer *buffer, size_t room)
{
    if (room < BLOCK_MIN_BYTES || buffer->room >= BLOCK_MIN_BYTES)
        return realloc(buffer->data, room);
    char *data = block_allocate(room);
    if (data == NULL)
        return NULL;
    if (buffer->size)
        memcpy(data, buffer->data, buffer->size);
    free(buffer->data);
    return data;
}

bool buffer_reserve(Buffer *buffer, size_t more)
{
    if (more <= buffer->room - buffer->size)
        return true;
    size_t needed, room;
    if (__builtin_add_overflow(buffer->size, more, &needed)) {
        buffer->failed = true;
        return false;
    }
    /* Double the size, so that appending many small pieces is cheap. */
    if (more >= LARGE || __builtin_mul_overflow(buffer->room, (size_t)2, &room) || room < needed)
        room = needed;
    if (room < MIN_ROOM)
        room = MIN_ROOM;
    char *data = grow(buffer, room);
    if (data == NULL) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->room = room;
    return true;
}

char *buffer_extend(Buffer *buffer, size_t size)
{
    if (!buffer_reserve(buffer, size ? size : 1))
        return NULL;
    char *place = buffer->data + buffer->size;
    buffer->size += size;
    return place;
}

void buffer_put(Buffer *buffer, const void *bytes, size_t size)
{
    if (size && buffer_reserve(buffer, size)) {
        memcpy(buffer->data + buffer->size, bytes, size);
        buffer->size += size;
    }
}

void buffer_put_slice(Buffer *buffer, Slice slice)
{
    buffer_put(buffer, slice.start, slice.size);
}

void buffer_put_string(Buffer *buffer, const char *string)
{
    buffer_put(buffer, string, strlen(string));
}

void buffer_put_char(Buffer *buffer, char byte)
{
    buffer_put(buffer, &byte, 1);
}

void buffer_put_unsigned(Buffer *buffer, uint64_t value)
{
    char digits[20], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    buffer_put(buffer, at, (size_t)(digits + sizeof digits - at));
}

void buffer_put_signed(Buffer *buffer, int64_t value)
{
    if (value < 0)
        buffer_put_char(buffer, '-');
    buffer_put_unsigned(buffer, value < 0 ? 0 - (uint64_t)value : (uint64_t)value);
}

void buffer_format(Buffer *buffer, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (size < 0 || !buffer_reserve(buffer, (size_t)size + 1)) {
        buffer->failed = true;
        return;
    }
    va_start(arguments, format);
    vsnprintf(buffer->data + buffer->size, (size_t)size + 1, format, arguments);
    va_end(arguments);
    buffer->size += (size_t)size;
}

const char *buffer_string(Buffer *buffer)
{
    if (buffer->failed || !buffer_reserve(buffer, 1))
        return NULL;
    buffer->data[buffer->size] = '\0';
    return buffer->data;
}

char *buffer_take(Buffer *buffer)
{
    char *string = (char *)(uintptr_t)buffer_string(buffer);
    if (string == NULL) {
        buffer_free(buffer);
        return NULL;
    }
    *buffer = (Buffer){0};
    return string;
}
