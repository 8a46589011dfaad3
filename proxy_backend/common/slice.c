#include "common/slice.h"

#include <stdlib.h>

/* Like tolower in the C locale, regardless of the process's locale. */
static char lower(char letter)
{
    return letter >= 'A' && letter <= 'Z' ? (char)(letter | 0x20) : letter;
}

bool slice_starts_nocase(Slice slice, const char *string)
{
    size_t size = strlen(string);
    if (slice.size < size)
        return false;
    for (size_t i = 0; i < size; i++)
        if (lower(slice.start[i]) != lower(string[i]))
            return false;
    return true;
}

bool slice_is_nocase(Slice slice, const char *string)
{
    return slice.size == strlen(string) && slice_starts_nocase(slice, string);
}

static bool is_blank(char byte)
{
    return byte == ' ' || byte == '\t';
}

Slice slice_trimmed(Slice slice)
{
    while (slice.size && is_blank(slice.start[0]))
        slice = slice_after(slice, 1);
    while (slice.size && is_blank(slice.start[slice.size - 1]))
        slice.size--;
    return slice;
}

bool slice_split(Slice *rest, char separator, Slice *part)
{
    if (rest->start == NULL)
        return false;
    const char *found = rest->size ? memchr(rest->start, separator, rest->size) : NULL;
    if (found == NULL) {
        *part = *rest;
        *rest = (Slice){NULL, 0};
        return true;
    }
    *part = (Slice){rest->start, (size_t)(found - rest->start)};
    *rest = slice_after(*rest, part->size + 1);
    return true;
}

bool slice_unsigned(Slice slice, uint64_t *value)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < slice.size; i++) {
        unsigned digit = (unsigned char)slice.start[i] - (unsigned)'0';
        if (digit > 9 || __builtin_mul_overflow(sum, (uint64_t)10, &sum) ||
            __builtin_add_overflow(sum, (uint64_t)digit, &sum))
            return false;
    }
    *value = sum;
    return slice.size > 0;
}

bool slice_signed(Slice slice, int64_t *value)
{
    bool negative = slice.size && slice.start[0] == '-';
    uint64_t size;
    if (!slice_unsigned(negative ? slice_after(slice, 1) : slice, &size))
        return false;
    if (size > (uint64_t)INT64_MAX + negative)
        return false;
    *value = negative ? (int64_t)(0 - size) : (int64_t)size;
    return true;
}

char *slice_copy(Slice slice)
{
    char *copy = malloc(slice.size + 1);
    if (copy == NULL)
        return NULL;
    if (slice.size)
        memcpy(copy, slice.start, slice.size);
    copy[slice.size] = '\0';
    return copy;
}
