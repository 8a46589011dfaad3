/* Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef PYTRITON_COMMON_UTF8_H
#define PYTRITON_COMMON_UTF8_H

#include "common/slice.h"

/* Returns the size of the first character, or 0 if it is invalid or truncated. `size` is at least 1. */
size_t utf8_char_size(const char *bytes, size_t size);
/* Returns how many bytes at the beginning are valid UTF-8. A truncated character at the end is not. */
size_t utf8_valid_prefix(const char *bytes, size_t size);
bool utf8_is_valid(Slice slice);
/* Encode a code point. Returns its size in bytes. */
size_t utf8_encode(uint32_t code, char bytes[4]);
/* Replace each invalid byte with a question mark. A character that may be truncated at the end is cut off. Returns the
 * new size.
 */
size_t utf8_sanitize(char *bytes, size_t size);

#endif
