#define _GNU_SOURCE
#include "calls/classification.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Maximum size of a number written like std::to_string does: a double of 309 digits, and six decimals. */
enum { NUMBER = 340 };

/* How to read, compare and write values of one kind. */
typedef struct {
    const char *bytes;
    DataType type;
} Values;

/* A value, in the widest type of its kind. */
typedef struct {
    enum { SIGNED, UNSIGNED, REAL } kind;
    union {
        int64_t integer;
        uint64_t natural;
        double real;
    };
} Value;

#define READ(c_type, kind_, member)                                                                                    \
    {                                                                                                                  \
        c_type value;                                                                                                  \
        memcpy(&value, values->bytes + place * sizeof value, sizeof value);                                            \
        return (Value){.kind = kind_, .member = value};                                                                \
    }

static Value value_at(const Values *values, size_t place)
{
    switch (values->type) {
    case TYPE_UINT8:
        READ(uint8_t, UNSIGNED, natural)
    case TYPE_UINT16:
        READ(uint16_t, UNSIGNED, natural)
    case TYPE_UINT32:
        READ(uint32_t, UNSIGNED, natural)
    case TYPE_UINT64:
        READ(uint64_t, UNSIGNED, natural)
    case TYPE_INT8:
        READ(int8_t, SIGNED, integer)
    case TYPE_INT16:
        READ(int16_t, SIGNED, integer)
    case TYPE_INT32:
        READ(int32_t, SIGNED, integer)
    case TYPE_INT64:
        READ(int64_t, SIGNED, integer)
    case TYPE_FP32:
        READ(float, REAL, real)
    default:
        READ(double, REAL, real)
    }
}

static bool has_order(DataType type)
{
    return (type >= TYPE_UINT8 && type <= TYPE_INT64) || type == TYPE_FP32 || type == TYPE_FP64;
}

/* Order by value, largest first, then by index. NaN comes last. */
static int compare(const void *left, const void *right, void *argument)
{
    size_t one = *(const size_t *)left, other = *(const size_t *)right;
    Value a = value_at(argument, one), b = value_at(argument, other);
    int order = 0;
    if (a.kind == SIGNED)
        order = (a.integer < b.integer) - (a.integer > b.integer);
    else if (a.kind == UNSIGNED)
        order = (a.natural < b.natural) - (a.natural > b.natural);
    else if (isnan(a.real) || isnan(b.real))
        order = (isnan(a.real) != 0) - (isnan(b.real) != 0);
    else
        order = (a.real < b.real) - (a.real > b.real);
    return order ? order : (one > other) - (one < other);
}

static void put_class(Buffer *text, const Values *values, size_t place, const char *label)
{
    char number[NUMBER];
    Value value = value_at(values, place);
    if (value.kind == SIGNED)
        snprintf(number, sizeof number, "%" PRId64, value.integer);
    else if (value.kind == UNSIGNED)
        snprintf(number, sizeof number, "%" PRIu64, value.natural);
    else
        snprintf(number, sizeof number, "%f", value.real);
    size_t at = text->size;
    uint32_t length = 0;
    buffer_put(text, &length, sizeof length);
    buffer_format(text, label ? "%s:%zu:%s" : "%s:%zu", number, place, label);
    if (text->failed)
        return;
    length = (uint32_t)(text->size - at - sizeof length);
    memcpy(text->data + at, &length, sizeof length);
}

/* Write the classes of one batch item. */
static bool put_item(
    ResponseState *given, uint32_t index, Values values, size_t count, size_t classes, Buffer *text, Problem *problem)
{
    size_t *places = arena_allocate(&given->memory, (count ? count : 1) * sizeof *places);
    if (places == NULL)
        return problem_no_memory(problem);
    for (size_t i = 0; i < count; i++)
        places[i] = i;
    qsort_r(places, count, sizeof *places, compare, &values);
    for (size_t i = 0; i < classes; i++) {
        const char *label = NULL;
        if (!api_succeeded(
                triton.InferenceResponseOutputClassificationLabel(given->core_response, index, places[i], &label),
                problem))
            return false;
        put_class(text, &values, places[i], label);
    }
    return text->failed ? problem_no_memory(problem) : true;
}

/* Find out whether the first dimension is the batch's. */
static bool is_batched(const ResponseState *given, bool *batched, Problem *problem)
{
    uint32_t flags = 0;
    Server *server = calls_settings_of(call_state(given->response.call)->calls)->server;
    if (!api_succeeded(triton.ServerModelBatchProperties(
                           server->server, given->response.model, given->response.version, &flags, NULL),
            problem))
        return false;
    *batched = (flags & BATCH_FIRST_DIM) != 0;
    return true;
}

/* Replace the output's data with the result, in the answer's memory. */
static bool replace(ResponseState *given, ResponseOutput *output, const Buffer *text, const int64_t shape[2],
    size_t dims, Problem *problem)
{
    int64_t *copy = arena_allocate(&given->memory, 2 * sizeof *copy);
    char *bytes = arena_allocate(&given->memory, text->size ? text->size : 1);
    if (copy == NULL || bytes == NULL)
        return problem_no_memory(problem);
    if (text->size)
        memcpy(bytes, text->data, text->size);
    output->elements = 1;
    for (size_t i = 0; i < dims; i++)
        output->elements *= (uint64_t)(copy[i] = shape[i]);
    output->shape = copy;
    output->dims = dims;
    output->datatype = TYPE_BYTES;
    output->bytes = bytes;
    output->size = text->size;
    return true;
}

bool classification_make(ResponseState *given, uint32_t index, ResponseOutput *output, Problem *problem)
{
    if (!has_order(output->datatype))
        return problem_set(problem, PROBLEM_INVALID,
            "class result not available for output due to unsupported type '%s'", datatype_name(output->datatype));
    bool batched;
    if (!is_batched(given, &batched, problem))
        return false;
    batched = batched && output->dims > 0;
    size_t items = batched ? (size_t)output->shape[0] : 1;
    size_t count = items ? output->elements / items : 0;
    size_t classes = output->requested->classes < count ? output->requested->classes : count;
    Buffer text = {0};
    bool made = true;
    /* Without classes, skip the loop: a large shape alone must not cost time. */
    for (size_t item = 0; made && classes && item < items; item++) {
        Values values = {
            (const char *)output->bytes + item * count * datatype_size(output->datatype), output->datatype};
        made = put_item(given, index, values, count, classes, &text, problem);
    }
    int64_t shape[2] = {(int64_t)items, (int64_t)classes};
    made = made && replace(given, output, &text, batched ? shape : shape + 1, batched ? 2 : 1, problem);
    buffer_free(&text);
    return made;
}
