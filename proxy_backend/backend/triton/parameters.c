#define _GNU_SOURCE
#include "triton/parameters.h"

#include "base/json.h"
#include "common/json_writer.h"
#include "triton/errors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Write a number as Python's json does, which the worker uses: NaN and Infinity are not JSON. */
static void put_double(char *text, size_t size, double value)
{
    if (isnan(value))
        snprintf(text, size, "NaN");
    else if (isinf(value))
        snprintf(text, size, value > 0 ? "Infinity" : "-Infinity");
    else
        snprintf(text, size, "%.17g", value);
}

void put_parameter(Buffer *json, const char *key, int type, const void *value)
{
    char number[32] = "null";
    buffer_put_string(json, json->size > 1 ? "," : "");
    json_put_sanitized(json, slice_of(key));
    buffer_put_string(json, ":");
    if (type == PARAMETER_STRING) {
        json_put_sanitized(json, slice_of(value));
        return;
    }
    if (type == PARAMETER_INT)
        snprintf(number, sizeof number, "%" PRId64, *(const int64_t *)value);
    else if (type == PARAMETER_BOOL)
        snprintf(number, sizeof number, "%s", *(const bool *)value ? "true" : "false");
    else if (type == PARAMETER_DOUBLE)
        put_double(number, sizeof number, *(const double *)value);
    buffer_put_string(json, number);
}

void set_response_parameters(TRITONBACKEND_Response *response, Slice text)
{
    Json object = {text.start, text.start + text.size};
    JsonMember member;
    for (bool more = json_first(object, &member); more; more = json_next(object, &member)) {
        char *key = json_string(member.key), *value = json_string(member.value);
        char number[32];
        snprintf(number, sizeof number, "%.*s", (int)(member.value.end - member.value.start), member.value.start);
        char *end;
        errno = 0;
        int64_t integer = strtoll(number, &end, 10);
        if (key == NULL)
            continue;
        if (value)
            triton_error_consume(TRITONBACKEND_ResponseSetStringParameter(response, key, value));
        else if (json_is(member.value, "true") || json_is(member.value, "false"))
            triton_error_consume(TRITONBACKEND_ResponseSetBoolParameter(response, key, *number == 't'));
        else if (*end == 0 && errno == 0)
            triton_error_consume(TRITONBACKEND_ResponseSetIntParameter(response, key, integer));
        else
            triton_error_consume(TRITONBACKEND_ResponseSetDoubleParameter(response, key, strtod(number, NULL)));
        free(key);
        free(value);
    }
}
