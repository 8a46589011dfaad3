/* A view of bytes that it does not own, and that need not be terminated by NUL. */
#ifndef PYTRITON_COMMON_SLICE_H
#define PYTRITON_COMMON_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *start; /* NULL if absent, which differs from being empty */
    size_t size;
} Slice;

/* Make a slice of a string literal. */
#define SLICE(literal) ((Slice){literal, sizeof(literal) - 1})
/* The arguments for "%.*s", which cuts off longer slices. */
enum { SLICE_SHOWN = 1 << 20 };
#define SLICE_ARGS(slice)                                                                                              \
    (int)((slice).size < SLICE_SHOWN ? (slice).size : SLICE_SHOWN), (slice).start ? (slice).start : ""

static inline Slice slice_of(const char *string)
{
    return (Slice){string, string ? strlen(string) : 0};
}

static inline bool slice_equals(Slice one, Slice other)
{
    return one.size == other.size && (one.size == 0 || memcmp(one.start, other.start, one.size) == 0);
}

static inline bool slice_is(Slice slice, const char *string)
{
    return slice_equals(slice, slice_of(string));
}

static inline bool slice_starts(Slice slice, const char *string)
{
    size_t size = strlen(string);
    return slice.size >= size && memcmp(slice.start, string, size) == 0;
}

/* Returns the slice without its first `count` bytes, which it must have. */
static inline Slice slice_after(Slice slice, size_t count)
{
    return (Slice){slice.start + count, slice.size - count};
}

/* Compare ignoring the case of ASCII letters. */
bool slice_is_nocase(Slice slice, const char *string);
bool slice_starts_nocase(Slice slice, const char *string);
/* Returns the slice without the spaces and tabs at both ends. */
Slice slice_trimmed(Slice slice);
/* Remove from `rest` the part before the first `separator`, and the separator itself. Returns false if `rest` is
 * absent. After the last part, it is.
 */
bool slice_split(Slice *rest, char separator, Slice *part);

/* Parse a number of decimal digits (slice_signed: after an optional minus). Returns false for anything else, or out of
 * range.
 */
bool slice_unsigned(Slice slice, uint64_t *value);
bool slice_signed(Slice slice, int64_t *value);

/* Returns a copy terminated by NUL, for free(), or NULL without memory. */
char *slice_copy(Slice slice);

#endif
