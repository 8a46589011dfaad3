#include "http1/target.h"

#include "common/utf8.h"

/* Returns the value of a hexadecimal digit, or 16 for other characters. */
static unsigned digit_of(char byte)
{
    return byte >= '0' && byte <= '9' ? (unsigned)(byte - '0')
        : byte >= 'a' && byte <= 'f'  ? (unsigned)(byte - 'a') + 10
        : byte >= 'A' && byte <= 'F'  ? (unsigned)(byte - 'A') + 10
                                      : 16;
}

/* Decode a segment. The output has room for the undecoded size. Returns false if an escape is invalid. */
static bool decode(Slice segment, char *to, size_t *size)
{
    *size = 0;
    for (size_t i = 0; i < segment.size; i++) {
        char byte = segment.start[i];
        if (byte == '%') {
            unsigned high = i + 2 < segment.size ? digit_of(segment.start[i + 1]) : 16;
            unsigned low = i + 2 < segment.size ? digit_of(segment.start[i + 2]) : 16;
            if (high > 15 || low > 15 || (high | low) == 0)
                return false;
            byte = (char)(high << 4 | low);
            i += 2;
        }
        to[(*size)++] = byte;
    }
    return utf8_is_valid((Slice){to, *size});
}

bool target_read(Target *target, Slice path, Problem *problem)
{
    target->count = 0;
    if (path.size == 0 || path.start[0] != '/' || path.size > sizeof target->text)
        return problem_set(problem, PROBLEM_NOT_FOUND, "Not Found");
    Slice rest = slice_after(path, 1), segment;
    char *to = target->text;
    while (slice_split(&rest, '/', &segment)) {
        if (target->count == TARGET_SEGMENTS)
            return problem_set(problem, PROBLEM_NOT_FOUND, "Not Found");
        size_t size;
        if (!decode(segment, to, &size))
            return problem_set(problem, PROBLEM_INVALID,
                "the request's path has an invalid escape (%%XX), a NUL, or is not UTF-8 after decoding");
        target->segments[target->count++] = (Slice){to, size};
        to += size;
    }
    return true;
}
