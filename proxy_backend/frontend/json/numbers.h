/* Reads and writes numbers in JSON. Doubles keep every bit. */
#ifndef PYTRITON_FRONTEND_JSON_NUMBERS_H
#define PYTRITON_FRONTEND_JSON_NUMBERS_H

#include "common/buffer.h"

typedef enum { NUMBER_INTEGER, NUMBER_DECIMAL, NUMBER_INFINITE, NUMBER_NAN } NumberKind;

/* A number as it was written: `digits` × 10^`exponent`, if all digits fit. */
typedef struct {
    Slice text;
    NumberKind kind; /* NUMBER_INTEGER if it has neither a point nor an exponent */
    bool negative;
    bool whole; /* `digits` contains all of its digits */
    uint64_t digits;
    int32_t exponent;
} Number;

/* Read a number that begins with a digit, '-', 'N' or 'I'. Returns NULL, or the error. */
const char *number_read(Slice text, Number *number);
/* Convert to an integer. Returns false if the number is not written as one, or out of range. */
bool number_signed(const Number *number, int64_t *value);
bool number_unsigned(const Number *number, uint64_t *value);
/* Convert to the nearest double. Returns false if the number is too large. */
bool number_double(const Number *number, double *value);

/* Write the shortest decimal that reads back as the same value, or "NaN", "Infinity" or "-Infinity", as Triton does. */
void number_put_double(Buffer *text, double value);
/* Write the shortest decimal that reads back as the same float, both directly and through a double. */
void number_put_float(Buffer *text, float value);

#endif
