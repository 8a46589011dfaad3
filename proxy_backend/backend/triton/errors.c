#define _GNU_SOURCE
#include "triton/errors.h"

#include "base/strings.h"

#include <stdarg.h>
#include <stdio.h>

const char *const error_code_names[ERROR_CODE_COUNT] = {
    "UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"};

bool triton_error_consume(TRITONSERVER_Error *error)
{
    if (error == NULL)
        return false;
    TRITONSERVER_ErrorDelete(error);
    return true;
}

char *triton_error_text(TRITONSERVER_Error *error)
{
    if (error == NULL)
        return NULL;
    char *text = strdup_printf("%s", TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
    return text;
}

void log_error(const char *format, ...)
{
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    triton_error_consume(TRITONSERVER_LogMessage(LOG_ERROR, __FILE__, __LINE__, text));
}
