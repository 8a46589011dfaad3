/* JSON numbers, read and written: doubles keep every bit. */
#ifndef PYTRITON_FRONTEND_JSON_NUMBERS_H
#define PYTRITON_FRONTEND_JSON_NUMBERS_H

#include "common/buffer.h"

typedef enum { NUMBER_INTEGER, NUMBER_DECIMAL, NUMBER_INFINITE, NUMBER_NAN } NumberKind;

/* The number as written: `digits` × 10^`exponent`, if all digits fit. */
typedef struct {
    Slice text;
    NumberKind kind; /* NUMBER_INTEGER: written without a point and exponent */
    bool negative;
    bool whole; /* `digits` has all of them */
    uint64_t digits;
    int32_t exponent;
} Number;

/* Read a number that begins with a digit, '-', 'N' or 'I'. Returns the error; NULL: none. */
const char *number_read(Slice text, Number *number);
/* Returns false if it is not written as an integer, or out of range. */
bool number_signed(const Number *number, int64_t *value);
bool number_unsigned(const Number *number, uint64_t *value);
/* Convert to the nearest double. Returns false if it is too large. */
bool number_double(const Number *number, double *value);

/* Write the shortest decimal that reads as the same value; "NaN", "Infinity" and "-Infinity" as Triton does. */
void number_put_double(Buffer *text, double value);
/* Write the shortest decimal that reads as the same float, directly or through a double. */
void number_put_float(Buffer *text, float value);

#endif
