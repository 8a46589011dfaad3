/* A growing byte buffer, written piece by piece: a body, headers, JSON. */
#ifndef PYTRITON_COMMON_BUFFER_H
#define PYTRITON_COMMON_BUFFER_H

#include "common/slice.h"

#include <stdarg.h>

/* All zero is an empty one. */
typedef struct {
    char *data; /* NULL until it has memory */
    size_t size, room;
    bool failed; /* out of memory; writers of many pieces check this once, at the end */
} Buffer;

void buffer_free(Buffer *buffer);
/* Empty it; it keeps its memory. */
void buffer_clear(Buffer *buffer);
/* Empty it; frees its memory if that exceeds `kept` bytes. */
void buffer_reset(Buffer *buffer, size_t kept);

/* Make room for `more` bytes, exactly if that is much. Returns false, and sets `failed`, without memory. */
bool buffer_reserve(Buffer *buffer, size_t more);
/* Append `size` bytes, which the caller writes. NULL without memory. */
char *buffer_extend(Buffer *buffer, size_t size);

void buffer_put(Buffer *buffer, const void *bytes, size_t size);
void buffer_put_slice(Buffer *buffer, Slice slice);
void buffer_put_string(Buffer *buffer, const char *string);
void buffer_put_char(Buffer *buffer, char byte);
void buffer_put_unsigned(Buffer *buffer, uint64_t value);
void buffer_put_signed(Buffer *buffer, int64_t value);
__attribute__((format(printf, 2, 3))) void buffer_format(Buffer *buffer, const char *format, ...);
void buffer_format_list(Buffer *buffer, const char *format, va_list arguments);

static inline Slice buffer_slice(const Buffer *buffer)
{
    return (Slice){buffer->data ? buffer->data : "", buffer->size};
}

/* Returns the bytes with NUL after them, valid until the buffer changes. NULL after a failure. */
const char *buffer_string(Buffer *buffer);
/* Returns the bytes with NUL for free(); the buffer is empty afterwards. NULL after a failure. */
char *buffer_take(Buffer *buffer);

#endif
