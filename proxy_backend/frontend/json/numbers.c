/* Reading: the digits as an integer are multiplied or divided by an exact power of ten, in the machine's widest
 * format. Where rounding could matter, and beyond these powers, the C library's strtod is used. Writing: starts with
 * the minimum number of digits for the format, and adds one until the decimal reads back as the same value.
 */
#define _GNU_SOURCE
#include "json/numbers.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    MAX_TEXT_LEN = 1100, /* maximum size of a number: a double written in full has 1,077 characters */
    EXACT_POWER = 27, /* largest power of ten that is exact in a long double, if that is wider than a double */
    EXACT_DOUBLE = 22,
    MAX_EXPONENT = 100000, /* beyond this, the exact exponent does not matter */
};

static const long double powers[EXACT_POWER + 1] = {1e0L, 1e1L, 1e2L, 1e3L, 1e4L, 1e5L, 1e6L, 1e7L, 1e8L, 1e9L, 1e10L,
    1e11L, 1e12L, 1e13L, 1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L, 1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L,
    1e27L};
static const double double_powers[EXACT_DOUBLE + 1] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* ── reading ──────────────────────────────────────────────────────────────────────────────────────── */

static bool is_digit(char byte)
{
    return byte >= '0' && byte <= '9';
}

/* Read digits, and return their number. Those that do not fit are counted in `missing`. */
static size_t read_digits(const char **at, const char *end, Number *number, size_t *missing)
{
    const char *begin = *at;
    for (; *at < end && is_digit(**at); ++*at) {
        /* Up to 19 digits always fit. */
        if (number->digits < 1000000000000000000u)
            number->digits = number->digits * 10 + (uint64_t)(**at - '0');
        else
            ++*missing;
    }
    return (size_t)(*at - begin);
}

/* Read an exponent such as "e-12". Returns false if it is malformed. */
static bool read_exponent(const char **at, const char *end, int32_t *exponent)
{
    bool negative = false;
    int32_t value = 0;
    ++*at;
    if (*at < end && (**at == '+' || **at == '-'))
        negative = *(*at)++ == '-';
    if (*at == end || !is_digit(**at))
        return false;
    for (; *at < end && is_digit(**at); ++*at)
        if (value < MAX_EXPONENT)
            value = value * 10 + (**at - '0');
    *exponent = negative ? -value : value;
    return true;
}

/* Read NaN, Inf or Infinity. */
static const char *read_word(const char *at, Slice text, Number *number)
{
    static const struct {
        const char *word;
        NumberKind kind;
    } words[] = {{"NaN", NUMBER_NAN}, {"Infinity", NUMBER_INFINITE}, {"Inf", NUMBER_INFINITE}};
    Slice rest = {at, (size_t)(text.start + text.size - at)};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (slice_starts(rest, words[i].word)) {
            number->kind = words[i].kind;
            number->text = (Slice){text.start, (size_t)(at - text.start) + strlen(words[i].word)};
            return NULL;
        }
    return "Invalid value";
}

/* Try to read an integer of more than 19 digits: it may fit into 64 bits. */
static void read_long_integer(Number *number)
{
    Slice digits = number->negative ? slice_after(number->text, 1) : number->text;
    uint64_t value;
    if (slice_unsigned(digits, &value)) {
        number->digits = value;
        number->exponent = 0;
        number->whole = true;
    }
}

const char *number_read(Slice text, Number *number)
{
    const char *at = text.start, *end = at + text.size;
    size_t missing = 0, fraction = 0;
    int32_t exponent = 0;
    *number = (Number){.kind = NUMBER_INTEGER, .negative = at < end && *at == '-'};
    if (number->negative)
        at++;
    if (at < end && (*at == 'N' || *at == 'I'))
        return read_word(at, text, number);
    bool zero = at < end && *at == '0';
    size_t integer = read_digits(&at, end, number, &missing);
    if (integer == 0 || (zero && integer > 1))
        return "Invalid value";
    if (at < end && *at == '.') {
        at++;
        number->kind = NUMBER_DECIMAL;
        size_t before = missing, digits = read_digits(&at, end, number, &missing);
        if (digits == 0)
            return "Miss fraction part in number";
        fraction = digits - (missing - before);
        missing = before;
        number->whole = digits == fraction;
    } else {
        number->whole = true;
    }
    number->whole &= missing == 0;
    if (at < end && (*at | 0x20) == 'e') {
        number->kind = NUMBER_DECIMAL;
        if (!read_exponent(&at, end, &exponent))
            return "Miss exponent in number";
    }
    number->text = (Slice){text.start, (size_t)(at - text.start)};
    if (number->text.size > MAX_TEXT_LEN)
        return "A number has more than 1100 characters";
    number->exponent = exponent - (int32_t)fraction + (int32_t)missing;
    if (number->kind == NUMBER_INTEGER && !number->whole)
        read_long_integer(number);
    return NULL;
}

bool number_unsigned(const Number *number, uint64_t *value)
{
    *value = number->digits;
    return number->kind == NUMBER_INTEGER && number->whole && (!number->negative || number->digits == 0);
}

bool number_signed(const Number *number, int64_t *value)
{
    uint64_t most = (uint64_t)INT64_MAX + number->negative;
    *value = (int64_t)(number->negative ? 0 - number->digits : number->digits);
    return number->kind == NUMBER_INTEGER && number->whole && number->digits <= most;
}

static locale_t c_locale;
static pthread_once_t c_locale_once = PTHREAD_ONCE_INIT;

static void make_locale(void)
{
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* Read with the C library, regardless of the process's locale. */
static double read_slowly(Slice text)
{
    char copy[MAX_TEXT_LEN + 1];
    memcpy(copy, text.start, text.size);
    copy[text.size] = '\0';
    pthread_once(&c_locale_once, make_locale);
    return c_locale ? strtod_l(copy, NULL, c_locale) : strtod(copy, NULL);
}

/* Compute `digits` × 10^`exponent`. Returns false if it is not certain which double is the nearest. */
static bool read_fast(uint64_t digits, int32_t exponent, double *value)
{
    if (exponent < -EXACT_POWER || exponent > EXACT_POWER || LDBL_MANT_DIG <= DBL_MANT_DIG)
        return false;
    long double exact = exponent < 0 ? (long double)digits / powers[-exponent] : (long double)digits * powers[exponent];
    /* The value was rounded once. Check that the next smaller and the next larger one would give the same double. */
    double below = (double)(exact * (1 - LDBL_EPSILON)), above = (double)(exact * (1 + LDBL_EPSILON));
    *value = (double)exact;
    return below == above;
}

bool number_double(const Number *number, double *value)
{
    if (number->kind == NUMBER_NAN) {
        *value = NAN;
        return true;
    }
    if (number->kind == NUMBER_INFINITE) {
        *value = number->negative ? -INFINITY : INFINITY;
        return true;
    }
    bool exact = number->whole && number->digits < (uint64_t)1 << DBL_MANT_DIG;
    if (exact && number->exponent >= -EXACT_DOUBLE && number->exponent <= EXACT_DOUBLE) {
        /* Both operands are exact, so the result is rounded correctly. */
        double digits = (double)number->digits;
        *value =
            number->exponent < 0 ? digits / double_powers[-number->exponent] : digits * double_powers[number->exponent];
    } else if (!number->whole || !read_fast(number->digits, number->exponent, value)) {
        *value = read_slowly(number->text);
        return !isinf(*value);
    }
    if (number->negative)
        *value = -*value;
    return true;
}

/* ── writing ──────────────────────────────────────────────────────────────────────────────────────── */

/* A decimal: `digits` × 10^`exponent`. The digits do not end with a zero. */
typedef struct {
    uint64_t digits;
    int exponent;
} Decimal;

static Decimal strip_zeros(uint64_t digits, int exponent)
{
    while (digits && digits % 10 == 0) {
        digits /= 10;
        exponent++;
    }
    return (Decimal){digits, exponent};
}

/* Convert to this many digits, with the C library's rounding. */
static Decimal print_slowly(double value, int digits)
{
    char text[64];
    uint64_t sum = 0;
    const char *at = text;
    snprintf(text, sizeof text, "%.*e", digits - 1, value);
    /* Skip the decimal point, which depends on the locale. */
    for (; *at && *at != 'e'; at++)
        if (is_digit(*at))
            sum = sum * 10 + (uint64_t)(*at - '0');
    int exponent = *at ? (int)strtol(at + 1, NULL, 10) : 0;
    return strip_zeros(sum, exponent - (digits - 1));
}

/* Convert to this many digits. The result may be rounded wrongly, so it must be read back. Returns false if it is out
 * of range.
 */
static bool print_fast(double value, int digits, int power, Decimal *decimal)
{
    int shift = digits - 1 - power;
    if (shift < -EXACT_POWER || shift > EXACT_POWER)
        return false;
    long double scaled = shift < 0 ? (long double)value / powers[-shift] : (long double)value * powers[shift];
    *decimal = strip_zeros((uint64_t)(scaled + 0.5L), -shift);
    return true;
}

/* Convert to this many digits with the faster method that can be used. */
static Decimal print(double value, int digits, int power)
{
    Decimal decimal;
    return print_fast(value, digits, power, &decimal) ? decimal : print_slowly(value, digits);
}

static double read_back(Decimal decimal)
{
    double value;
    if (read_fast(decimal.digits, decimal.exponent, &value))
        return value;
    char text[64];
    int size = snprintf(text, sizeof text, "%llue%d", (unsigned long long)decimal.digits, decimal.exponent);
    return read_slowly((Slice){text, (size_t)size});
}

/* Returns the power of ten of the first digit. */
static int magnitude(double value)
{
    int binary;
    frexp(value, &binary);
    int power = (int)floor((binary - 1) * 0.30102999566398120); /* This may be one too small. */
    return value < read_back((Decimal){1, power + 1}) ? power : power + 1;
}

/* Convert a finite value greater than 0. Begin with the number of digits up to which every decimal survives: no
 * shorter one has to be tried, because zeros at its end are removed. Subnormal numbers have no such length.
 */
static Decimal shortest_double(double value)
{
    int power = magnitude(value);
    Decimal decimal = {0};
    for (int digits = value < DBL_MIN ? 1 : DBL_DIG; digits <= 18; digits++) {
        decimal = print(value, digits, power);
        if (read_back(decimal) == value)
            break;
    }
    return decimal;
}

static Decimal shortest_float(float value)
{
    int power = magnitude((double)value);
    Decimal decimal = {0};
    for (int digits = value < FLT_MIN ? 1 : FLT_DIG; digits <= 10; digits++) {
        decimal = print((double)value, digits, power);
        double read = read_back(decimal);
        /* Also check that the value is not so close to the middle between two floats that reading it as a double first
         * would matter.
         */
        if ((float)read == value && (float)(read * (1 - DBL_EPSILON)) == value &&
            (float)(read * (1 + DBL_EPSILON)) == value)
            break;
    }
    return decimal;
}

/* Write a decimal such as "12.5", "0.0012", "1.0" or "1.5e30". It always has a point or an exponent, which shows its
 * type.
 */
static void put_decimal(Buffer *text, Decimal decimal)
{
    char digits[20], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + decimal.digits % 10);
        decimal.digits /= 10;
    } while (decimal.digits);
    int count = (int)(digits + sizeof digits - at), point = count + decimal.exponent; /* Position of the point. */
    static const char zeros[] = "000000000000000000000";
    if (point > 0 && point <= 21) {
        int whole = point < count ? point : count;
        buffer_put(text, at, (size_t)whole);
        buffer_put(text, zeros, (size_t)(point - whole));
        buffer_put_char(text, '.');
        buffer_put(text, whole < count ? at + whole : zeros, whole < count ? (size_t)(count - whole) : 1);
    } else if (point <= 0 && point > -6) {
        buffer_put(text, "0.", 2);
        buffer_put(text, zeros, (size_t)-point);
        buffer_put(text, at, (size_t)count);
    } else {
        buffer_put_char(text, at[0]);
        if (count > 1)
            buffer_put_char(text, '.');
        buffer_put(text, at + 1, (size_t)count - 1);
        buffer_put_char(text, 'e');
        buffer_put_signed(text, point - 1);
    }
}

/* Write the sign, and a value that has no digits. Returns false if digits have to follow. */
static bool put_special(Buffer *text, double value)
{
    if (isnan(value)) {
        buffer_put(text, "NaN", 3);
        return true;
    }
    if (signbit(value))
        buffer_put_char(text, '-');
    if (isinf(value))
        buffer_put_string(text, "Infinity");
    else if (value == 0)
        buffer_put(text, "0.0", 3);
    return isinf(value) || value == 0;
}

void number_put_double(Buffer *text, double value)
{
    if (!put_special(text, value))
        put_decimal(text, shortest_double(fabs(value)));
}

void number_put_float(Buffer *text, float value)
{
    if (!put_special(text, (double)value))
        put_decimal(text, shortest_float(fabsf(value)));
}
