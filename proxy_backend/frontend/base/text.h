/* A growing byte buffer, written piece by piece: a body, headers, JSON. */
#ifndef PYTRITON_FRONTEND_BASE_TEXT_H
#define PYTRITON_FRONTEND_BASE_TEXT_H

#include "base/slice.h"

#include <stdarg.h>

/* All zero is an empty one. */
typedef struct {
    char *data; /* NULL until it has memory */
    size_t size, room;
    bool failed; /* out of memory; writers of many pieces check this once, at the end */
} Text;

void text_free(Text *text);
/* Empty it; it keeps its memory. */
void text_clear(Text *text);
/* Empty it; frees its memory if that exceeds `kept` bytes. */
void text_reset(Text *text, size_t kept);

/* Make room for `more` bytes, exactly if that is much. Returns false, and sets `failed`, without memory. */
bool text_reserve(Text *text, size_t more);
/* Append `size` bytes, which the caller writes. NULL without memory. */
char *text_extend(Text *text, size_t size);

void text_put(Text *text, const void *bytes, size_t size);
void text_put_slice(Text *text, Slice slice);
void text_put_string(Text *text, const char *string);
void text_put_char(Text *text, char byte);
void text_put_unsigned(Text *text, uint64_t value);
void text_put_signed(Text *text, int64_t value);
__attribute__((format(printf, 2, 3))) void text_format(Text *text, const char *format, ...);
void text_format_list(Text *text, const char *format, va_list arguments);

static inline Slice text_slice(const Text *text)
{
    return (Slice){text->data ? text->data : "", text->size};
}

/* Returns the bytes with NUL after them, valid until the text changes. NULL after a failure. */
const char *text_string(Text *text);
/* Returns the bytes with NUL for free(); the text is empty afterwards. NULL after a failure. */
char *text_take(Text *text);

#endif
