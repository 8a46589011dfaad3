#define _GNU_SOURCE
#include "base/strings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

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

char *strdup_slice(Slice text)
{
    return memchr(text.start, 0, text.size) ? NULL : slice_copy(text);
}

char *strdup_printable(Slice text)
{
    char *copy = slice_copy(text);
    for (size_t i = 0; copy && i < text.size; i++)
        if (copy[i] == '\0')
            copy[i] = '?';
    return copy;
}
