/* Numbers of JSON, both ways: doubles to the last bit. */
#ifndef PYTRITON_FRONT_JSON_NUMBERS_H
#define PYTRITON_FRONT_JSON_NUMBERS_H

#include "base/text.h"

typedef enum { NUMBER_INTEGER, NUMBER_DECIMAL, NUMBER_INFINITE, NUMBER_NAN } NumberKind;

/* As it is written: `digits` × 10^`exponent`, where all digits fit. */
typedef struct {
    Slice text;
    NumberKind kind; /* NUMBER_INTEGER: neither a point nor an exponent is written */
    bool negative;
    bool whole; /* `digits` has all of them */
    uint64_t digits;
    int32_t exponent;
} Number;

/* Read what begins with a digit, '-', 'N' or 'I'. Returns what is wrong; NULL: nothing. */
const char *number_read(Slice text, Number *number);
/* False: it is not written as an integer, or out of range. */
bool number_signed(const Number *number, int64_t *value);
bool number_unsigned(const Number *number, uint64_t *value);
/* The nearest double. False: it is larger than all of them. */
bool number_double(const Number *number, double *value);

/* Write the shortest decimal that is read as the same value; "NaN", "Infinity" and "-Infinity" as Triton does. */
void number_put_double(Text *text, double value);
/* The same for whoever reads it as a float, directly or through a double. */
void number_put_float(Text *text, float value);

#endif
