#define _GNU_SOURCE
#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *strdup_printf(const char *format, ...)
{
    char *text = NULL;
    va_list values;
    va_start(values, format);
    if (vasprintf(&text, format, values) < 0)
        abort();
    va_end(values);
    return text;
}

bool text_equals(Text text, const char *what)
{
    return text.size == strlen(what) && memcmp(text.start, what, text.size) == 0;
}

char *text_copy(Text text)
{
    return memchr(text.start, 0, text.size) ? NULL : text_without_nul(text);
}

char *text_without_nul(Text text)
{
    char *copy = malloc(text.size + 1);
    for (size_t i = 0; copy && i < text.size; i++)
        copy[i] = text.start[i] ? text.start[i] : '?';
    if (copy)
        copy[text.size] = 0;
    return copy;
}

/* RFC 3629. */
size_t utf8_char_size(const char *start, size_t left)
{
    const uint8_t *at = (const uint8_t *)start;
    if (at[0] < 0x80)
        return 1;
    size_t size = at[0] >= 0xc2 && at[0] < 0xe0 ? 2
        : at[0] >= 0xe0 && at[0] < 0xf0         ? 3
        : at[0] >= 0xf0 && at[0] < 0xf5         ? 4
                                                : 0;
    if (size == 0 || size > left)
        return 0;
    for (size_t i = 1; i < size; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool overlong = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool none = (at[0] == 0xed && at[1] >= 0xa0) || (at[0] == 0xf4 && at[1] >= 0x90); /* surrogates, beyond the last */
    return overlong || none ? 0 : size;
}

bool utf8_is_valid(Text text)
{
    for (size_t i = 0; i < text.size;) {
        if (!(text.start[i] & 0x80)) {
            i++;
            continue;
        }
        size_t size = utf8_char_size(text.start + i, text.size - i);
        if (size == 0)
            return false;
        i += size;
    }
    return true;
}
