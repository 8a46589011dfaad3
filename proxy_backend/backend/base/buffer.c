#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

void buffer_free(Buffer *buffer)
{
    free(buffer->data);
    *buffer = (Buffer){0};
}

void buffer_put(Buffer *buffer, const void *bytes, size_t size)
{
    if (buffer->failed)
        return;
    if (size > buffer->capacity - buffer->size) {
        size_t capacity = buffer->capacity ? buffer->capacity : 1024;
        while (capacity - buffer->size < size && capacity < SIZE_MAX / 4)
            capacity *= 2;
        uint8_t *data = capacity - buffer->size < size ? NULL : realloc(buffer->data, capacity);
        if (data == NULL) {
            buffer->failed = true;
            return;
        }
        buffer->data = data;
        buffer->capacity = capacity;
    }
    if (size)
        memcpy(buffer->data + buffer->size, bytes, size);
    buffer->size += size;
}

void buffer_puts(Buffer *buffer, const char *text)
{
    buffer_put(buffer, text, strlen(text));
}
