/* Strict UTF-8 (RFC 3629): nothing overlong, no surrogates, nothing above U+10FFFF. */
#ifndef PYTRITON_FRONTEND_BASE_UTF8_H
#define PYTRITON_FRONTEND_BASE_UTF8_H

#include "base/slice.h"

/* Returns how many bytes at the beginning are valid; all of them: `size`. A truncated character at the end is not. */
size_t utf8_valid_prefix(const char *bytes, size_t size);
bool utf8_is_valid(Slice slice);
/* Write a valid code point. Returns its size in bytes. */
size_t utf8_encode(uint32_t code, char bytes[4]);
/* Replace each invalid byte by '?'. A character that may be truncated at the end is kept. Returns the size. */
size_t utf8_sanitize(char *bytes, size_t size);

#endif
