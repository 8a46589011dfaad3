/* A growing byte buffer. */
#ifndef PYTRITON_COMMON_BUFFER_H
#define PYTRITON_COMMON_BUFFER_H

#include "common/slice.h"

#include <stdarg.h>

/* A buffer of all zeros is empty. */
typedef struct {
    char *data; /* NULL until memory is allocated */
    size_t size, room;
    bool failed; /* memory was lacking; callers may check this once after several writes */
} Buffer;

void buffer_free(Buffer *buffer);
/* Empty the buffer and keep its memory. */
void buffer_clear(Buffer *buffer);
/* Empty the buffer, and free its memory if that exceeds `kept` bytes. */
void buffer_reset(Buffer *buffer, size_t kept);

/* Make room for `more` bytes. Returns false without memory, and sets `failed`. */
bool buffer_reserve(Buffer *buffer, size_t more);
/* Append `size` bytes and return their address, for the caller to write them. NULL without memory. */
char *buffer_extend(Buffer *buffer, size_t size);

void buffer_put(Buffer *buffer, const void *bytes, size_t size);
void buffer_put_slice(Buffer *buffer, Slice slice);
void buffer_put_string(Buffer *buffer, const char *string);
void buffer_put_char(Buffer *buffer, char byte);
void buffer_put_unsigned(Buffer *buffer, uint64_t value);
void buffer_put_signed(Buffer *buffer, int64_t value);
__attribute__((format(printf, 2, 3))) void buffer_format(Buffer *buffer, const char *format, ...);

static inline Slice buffer_slice(const Buffer *buffer)
{
    return (Slice){buffer->data ? buffer->data : "", buffer->size};
}

/* Returns the contents terminated by NUL, valid until the buffer changes. NULL if `failed` is set. */
const char *buffer_string(Buffer *buffer);
/* Returns the contents terminated by NUL, for free(), and empties the buffer. NULL if `failed` is set. */
char *buffer_take(Buffer *buffer);

#endif
