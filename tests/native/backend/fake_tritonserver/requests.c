/* The requests: three inputs, two outputs, five parameters, and what FAKE_WRONG says is wrong with some. */
#define _GNU_SOURCE
#include "fake_tritonserver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct TRITONBACKEND_Input {
    const char *name;
    int datatype;
    int64_t shape[2];
    const char *pieces[2];
    uint64_t sizes[2];
};

/* Whether this is what is wrong with a request. */
static bool is_wrong(const TRITONBACKEND_Request *request, const char *what)
{
    const char *wrong = getenv("FAKE_WRONG");
    return request->number % 2 && wrong && strcmp(wrong, what) == 0;
}

/* In two pieces each, as a frontend may give them; the second of no bytes but for x. */
static TRITONBACKEND_Input inputs[] = {
    {"x", 11, {1, 4}, {"0123456789ab", "cdef"}, {12, 4}},
    {"s", TYPE_BYTES, {1, 1}, {"\3\0\0\0abc", ""}, {7, 0}},
    {"nothing", 9, {1, 0}, {"", ""}, {0, 0}},
};
/* The correlation id as the core gives it, and what only looks like that. */
static const char padded[132] = "\1\0\0\0s, a former one";
static const char foreign[132] = "\1\0\0\0t, a former one";
static TRITONBACKEND_Input wrong_inputs[] = {
    {"s", TYPE_BYTES, {1, 1}, {"\4\0\0\0abc", ""}, {7, 0}},
    {"s", TYPE_BYTES, {1, 1}, {"\1\0", "\0\0ab"}, {2, 4}},
    {"s", TYPE_BYTES, {1, 2}, {"\1\0\0\0a\377\377", "\377\377"}, {7, 2}},
    {"s", TYPE_BYTES, {1, 1}, {"\1\0", ""}, {2, 0}},
    {"s", TYPE_BYTES, {1, 1}, {padded, ""}, {sizeof padded, 0}},
    {"s", TYPE_BYTES, {1, 1}, {foreign, ""}, {sizeof foreign, 0}},
};

TRITONSERVER_Error *TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    (void)request;
    *count = 3;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request *request, uint32_t index, TRITONBACKEND_Input **input)
{
    static const char *const wrongs[] = {
        "long string", "two strings", "one string", "half a length", "padded", "foreign"};
    *input = &inputs[index];
    for (int i = 0; i < 6 && index == 1; i++)
        if (is_wrong(request, wrongs[i]))
            *input = &wrong_inputs[i];
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **name, int *datatype,
    const int64_t **shape, uint32_t *dims, uint64_t *size, uint32_t *pieces)
{
    if (name)
        *name = input->name;
    if (datatype)
        *datatype = input->datatype;
    if (shape)
        *shape = input->shape;
    if (dims)
        *dims = 2;
    if (size)
        *size = input->sizes[0] + input->sizes[1];
    if (pieces)
        *pieces = 2;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input *input, uint32_t index, const void **buffer, uint64_t *size, int *memory, int64_t *id)
{
    (void)id;
    *memory = MEMORY_CPU;
    *buffer = input->pieces[index];
    *size = input->sizes[index];
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    (void)request;
    *count = 2;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request, uint32_t index, const char **name)
{
    (void)request;
    *name = index ? "y" : "z";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request *request, uint32_t *count)
{
    (void)request;
    *count = 5;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request *request, uint32_t index, const char **key, int *type, const void **value)
{
    static const int64_t integer = -1234567890123;
    static double number = 0.1;
    static const bool yes = true;
    static const struct {
        const char *key;
        int type;
        const void *value;
    } all[] = {{"text", PARAMETER_STRING, "a \"quoted\"\n\\ \xc3\xa9"}, {"integer", PARAMETER_INT, &integer},
        {"yes", PARAMETER_BOOL, &yes}, {"number", PARAMETER_DOUBLE, &number},
        {"pytriton_calls", PARAMETER_STRING, "made up"},
        /* instead of the first one: */
        {"text", PARAMETER_STRING, "cut off in the middle \xc3"}, {"t\xff\xfe", PARAMETER_STRING, "b"}};
    if (getenv("FAKE_NUMBER"))
        number = atof(getenv("FAKE_NUMBER"));
    const char *header = getenv("FAKE_HEADER"); /* NAME=VALUE */
    static char name[64];
    if (index == 0 && header) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(header, "="), header);
        *key = name;
        *type = PARAMETER_STRING;
        *value = strchr(header, '=') + 1;
        return NULL;
    }
    if (index == 0)
        index = is_wrong(request, "parameter") ? 5 : is_wrong(request, "key") ? 6 : 0;
    *key = all[index].key;
    *type = all[index].type;
    *value = all[index].value;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestId(TRITONBACKEND_Request *request, const char **id)
{
    const char *given = getenv("FAKE_ID");
    *id = is_wrong(request, "id") ? "\xed\xa0\x80" : given ? given : "i";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationId(TRITONBACKEND_Request *request, uint64_t *id)
{
    (void)request, (void)id;
    return TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "it is a string");
}

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request, const char **id)
{
    *id = is_wrong(request, "sequence") ? "s\x80" : "s";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestFlags(TRITONBACKEND_Request *request, uint32_t *flags)
{
    (void)request;
    *flags = 0;
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_InferenceRequestTimeoutMicroseconds(
    TRITONBACKEND_Request *request, uint64_t *timeout_us)
{
    (void)request;
    *timeout_us = 0;
    return NULL;
}

/* The first request of a batch is traced, and who has a wrong context. */
TRITONSERVER_Error *TRITONBACKEND_RequestTrace(TRITONBACKEND_Request *request, TRITONSERVER_InferenceTrace **trace)
{
    *trace = request->number && !is_wrong(request, "trace") ? NULL : (TRITONSERVER_InferenceTrace *)request;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceTraceContext(TRITONSERVER_InferenceTrace *trace, const char **context)
{
    *context = is_wrong((TRITONBACKEND_Request *)trace, "trace") ? "{\"traceparent\":\"\xff\"}"
                                                                 : "{\"traceparent\":\"00-1-2-01\"}";
    return NULL;
}

TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t flags)
{
    (void)request;
    released++;
    if (flags != RELEASE_ALL)
        printf("request %d is queued again\n", request->number);
    return NULL;
}
