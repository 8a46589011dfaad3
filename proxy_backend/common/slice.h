/* A view of bytes: not owned, not terminated by NUL. */
#ifndef PYTRITON_COMMON_SLICE_H
#define PYTRITON_COMMON_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *start; /* NULL: absent; "" is present and empty */
    size_t size;
} Slice;

/* A slice of a literal. */
#define SLICE(literal) ((Slice){literal, sizeof(literal) - 1})
/* For "%.*s"; longer output is cut off. */
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

/* Returns the slice without its first `count` bytes; it must have them. */
static inline Slice slice_after(Slice slice, size_t count)
{
    return (Slice){slice.start + count, slice.size - count};
}

/* Compare ignoring the case of ASCII letters. */
bool slice_is_nocase(Slice slice, const char *string);
bool slice_starts_nocase(Slice slice, const char *string);
/* Returns it without spaces and tabs at both ends. */
Slice slice_trimmed(Slice slice);
/* Cut the part before the first `separator`, and the separator, off `rest`. Returns false if `rest` was NULL or is
 * used up.
 */
bool slice_split(Slice *rest, char separator, Slice *part);

/* Parse decimal digits only (with a leading minus, if negatives are allowed). Returns false if it has others or none,
 * or is out of range.
 */
bool slice_unsigned(Slice slice, uint64_t *value);
bool slice_signed(Slice slice, int64_t *value);

/* Returns a copy with NUL at its end, for free(); NULL without memory. */
char *slice_copy(Slice slice);

#endif
