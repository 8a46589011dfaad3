/* UTF-8, strictly (RFC 3629): nothing overlong, no surrogates, nothing above U+10FFFF. */
#ifndef PYTRITON_FRONT_UTF8_H
#define PYTRITON_FRONT_UTF8_H

#include "base/slice.h"

/* How many bytes at the beginning are valid; all of them: `size`. A character that is cut off at the end is not. */
size_t utf8_valid_prefix(const char *bytes, size_t size);
bool utf8_is_valid(Slice slice);
/* Write a code point, which is one; returns the number of its bytes. */
size_t utf8_encode(uint32_t code, char bytes[4]);
/* Replace each byte that is not valid by '?'. What may be cut off at the end stays whole: returns the size. */
size_t utf8_mend(char *bytes, size_t size);

#endif
