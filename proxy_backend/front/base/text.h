/* Bytes that grow: what is written piece by piece, such as a body, headers, JSON. */
#ifndef PYTRITON_FRONT_TEXT_H
#define PYTRITON_FRONT_TEXT_H

#include "base/slice.h"

#include <stdarg.h>

/* All zero is an empty one. */
typedef struct {
    char *data; /* NULL as long as it has no memory */
    size_t size, room;
    bool failed; /* there was no memory for something; whoever writes a lot looks once, at the end */
} Text;

void text_free(Text *text);
/* Empty it; its memory stays for the next use. */
void text_clear(Text *text);
/* Empty it, and give its memory back if that is more than `kept` bytes. */
void text_reset(Text *text, size_t kept);

/* Make room for `more` bytes, exactly where that is a lot. False, and `failed`: there is no memory. */
bool text_reserve(Text *text, size_t more);
/* Room for `size` bytes that the caller writes; they count already. NULL: there is no memory. */
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

/* The bytes with NUL after them, valid until the text changes. NULL: there was no memory. */
const char *text_string(Text *text);
/* The same for free(); the text is empty afterwards. NULL: there was no memory. */
char *text_take(Text *text);

#endif
