#include "common/utf8.h"

size_t utf8_char_size(const char *bytes, size_t size)
{
    const unsigned char *at = (const unsigned char *)bytes;
    unsigned char first = at[0];
    if (first < 0x80)
        return 1;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > size)
        return 0;
    /* The limits of the second byte exclude overlong forms, surrogates, and code points above U+10FFFF. */
    unsigned char least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    unsigned char most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (at[1] < least || at[1] > most)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

size_t utf8_valid_prefix(const char *bytes, size_t size)
{
    size_t at = 0;
    while (at < size) {
        uint64_t word;
        if (size - at >= sizeof word) {
            memcpy(&word, bytes + at, sizeof word);
            if ((word & 0x8080808080808080u) == 0) {
                at += sizeof word;
                continue;
            }
        }
        size_t length = utf8_char_size(bytes + at, size - at);
        if (length == 0)
            break;
        at += length;
    }
    return at;
}

bool utf8_is_valid(Slice slice)
{
    return utf8_valid_prefix(slice.start, slice.size) == slice.size;
}

size_t utf8_encode(uint32_t code, char bytes[4])
{
    if (code < 0x80) {
        bytes[0] = (char)code;
        return 1;
    }
    size_t length = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = length - 1; i > 0; i--) {
        bytes[i] = (char)(0x80 | (code & 0x3f));
        code >>= 6;
    }
    static const unsigned char marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    bytes[0] = (char)(marks[length] | code);
    return length;
}

/* Returns whether the bytes can be the beginning of a truncated character. */
static bool is_cut(const char *bytes, size_t size)
{
    if (size == 0 || size > 3)
        return false;
    unsigned char first = (unsigned char)bytes[0];
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length <= size)
        return false;
    for (size_t i = 1; i < size; i++)
        if (((unsigned char)bytes[i] & 0xc0) != 0x80)
            return false;
    return true;
}

size_t utf8_sanitize(char *bytes, size_t size)
{
    for (size_t at = 0; (at += utf8_valid_prefix(bytes + at, size - at)) < size; at++) {
        if (is_cut(bytes + at, size - at))
            return at;
        bytes[at] = '?';
    }
    return size;
}
