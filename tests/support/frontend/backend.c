/* A backend for tests of the frontend: models that answer what they are asked, as parameters of the request say.
 *
 * Input INPUT<n> is answered as OUTPUT<n>, with its type and shape. Parameters: "answers": so many answers (decoupled models; 0 as
 * well), "fail": an error of that text, "sleep_ms": later, "report": its parameters and what else it knows come back as response parameters.
 */
#include "triton/api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

TRITONSERVER_Error *TRITONBACKEND_RequestCorrelationIdString(TRITONBACKEND_Request *request, const char **id);

enum { PARAMETERS = 64 };

typedef struct {
    int64_t answers, sleep_ms;
    const char *fail;
    bool report;
} Wish;

static void check(TRITONSERVER_Error *error, const char *doing)
{
    if (error == NULL)
        return;
    fprintf(stderr, "backend: %s: %s\n", doing, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
}

static Wish wish_of(TRITONBACKEND_Request *request)
{
    Wish wish = {.answers = 1};
    uint32_t count = 0;
    check(TRITONBACKEND_RequestParameterCount(request, &count), "count");
    for (uint32_t i = 0; i < count; i++) {
        const char *key;
        int type;
        const void *value;
        check(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value), "parameter");
        if (strcmp(key, "answers") == 0 && type == PARAMETER_INT)
            wish.answers = *(const int64_t *)value;
        else if (strcmp(key, "sleep_ms") == 0 && type == PARAMETER_INT)
            wish.sleep_ms = *(const int64_t *)value;
        else if (strcmp(key, "fail") == 0 && type == PARAMETER_STRING)
            wish.fail = value;
        else if (strcmp(key, "report") == 0)
            wish.report = true;
    }
    return wish;
}

static void tell_parameter(TRITONBACKEND_Response *response, const char *key, int type, const void *value)
{
    if (type == PARAMETER_STRING)
        check(TRITONBACKEND_ResponseSetStringParameter(response, key, value), "report");
    else if (type == PARAMETER_INT)
        check(TRITONBACKEND_ResponseSetIntParameter(response, key, *(const int64_t *)value), "report");
    else if (type == PARAMETER_BOOL)
        check(TRITONBACKEND_ResponseSetBoolParameter(response, key, *(const bool *)value), "report");
    else if (type == PARAMETER_DOUBLE)
        check(TRITONBACKEND_ResponseSetDoubleParameter(response, key, *(const double *)value), "report");
}

static void report(TRITONBACKEND_Response *response, TRITONBACKEND_Request *request)
{
    uint32_t count = 0, flags = 0;
    check(TRITONBACKEND_RequestParameterCount(request, &count), "count");
    for (uint32_t i = 0; i < count && i < PARAMETERS; i++) {
        const char *key;
        int type;
        const void *value;
        check(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value), "parameter");
        tell_parameter(response, key, type, value);
    }
    uint64_t id = 0, timeout = 0;
    const char *name = "";
    TRITONSERVER_Error *error = TRITONBACKEND_RequestCorrelationId(request, &id);
    if (error == NULL) {
        check(TRITONBACKEND_ResponseSetIntParameter(response, "was_sequence", (int64_t)id), "report");
    } else {
        TRITONSERVER_ErrorDelete(error);
        check(TRITONBACKEND_RequestCorrelationIdString(request, &name), "id");
        check(TRITONBACKEND_ResponseSetStringParameter(response, "was_sequence", name), "report");
    }
    check(TRITONBACKEND_RequestFlags(request, &flags), "flags");
    check(TRITONBACKEND_ResponseSetIntParameter(response, "was_flags", flags), "report");
    check(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout), "timeout");
    check(TRITONBACKEND_ResponseSetIntParameter(response, "was_timeout", (int64_t)timeout), "report");
    TRITONSERVER_InferenceTrace *trace = NULL;
    const char *context = NULL;
    check(TRITONBACKEND_RequestTrace(request, &trace), "trace");
    if (trace)
        check(TRITONSERVER_InferenceTraceContext(trace, &context), "context");
    check(TRITONBACKEND_ResponseSetStringParameter(response, "was_trace",
              context     ? context
                  : trace ? "(none)"
                          : "(no trace)"),
        "report");
}

/* Answer one input. */
static TRITONSERVER_Error *answer_input(
    TRITONBACKEND_Request *request, TRITONBACKEND_Response *response, uint32_t index)
{
    TRITONBACKEND_Input *input;
    TRITONBACKEND_Output *output;
    const char *name;
    const int64_t *shape;
    uint32_t dims, pieces;
    uint64_t size;
    int type, memory = MEMORY_CPU;
    int64_t device = 0;
    void *buffer;
    TRITONSERVER_Error *error = TRITONBACKEND_RequestInputByIndex(request, index, &input);
    if (error == NULL)
        error = TRITONBACKEND_InputProperties(input, &name, &type, &shape, &dims, &size, &pieces);
    if (error)
        return error;
    char answered[64];
    snprintf(answered, sizeof answered, "OUTPUT%s", strncmp(name, "INPUT", 5) == 0 ? name + 5 : "");
    uint32_t wanted = 0;
    bool asked = false;
    check(TRITONBACKEND_RequestOutputCount(request, &wanted), "outputs");
    for (uint32_t i = 0; i < wanted; i++) {
        const char *one;
        check(TRITONBACKEND_RequestOutputName(request, i, &one), "output");
        asked = asked || strcmp(one, answered) == 0;
    }
    if (!asked)
        return NULL;
    error = TRITONBACKEND_ResponseOutput(response, &output, answered, type, shape, dims);
    if (error == NULL)
        error = TRITONBACKEND_OutputBuffer(output, &buffer, size, &memory, &device);
    for (uint32_t i = 0; error == NULL && i < pieces; i++) {
        const void *bytes;
        uint64_t some;
        int from = MEMORY_CPU;
        error = TRITONBACKEND_InputBuffer(input, i, &bytes, &some, &from, &device);
        if (error == NULL && some) {
            memcpy(buffer, bytes, some);
            buffer = (char *)buffer + some;
        }
    }
    return error;
}

static void answer(
    TRITONBACKEND_Request *request, TRITONBACKEND_ResponseFactory *factory, const Wish *wish, uint32_t flags)
{
    TRITONBACKEND_Response *response;
    check(TRITONBACKEND_ResponseNewFromFactory(&response, factory), "response");
    TRITONSERVER_Error *error = wish->fail ? TRITONSERVER_ErrorNew(ERROR_INTERNAL, wish->fail) : NULL;
    uint32_t inputs = 0;
    check(TRITONBACKEND_RequestInputCount(request, &inputs), "inputs");
    for (uint32_t i = 0; error == NULL && i < inputs; i++)
        error = answer_input(request, response, i);
    if (error == NULL && wish->report)
        report(response, request);
    check(TRITONBACKEND_ResponseSend(response, flags, error), "send");
    if (error)
        TRITONSERVER_ErrorDelete(error);
}

static void serve(TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request *request)
{
    TRITONBACKEND_Model *model;
    const char *name = "";
    check(TRITONBACKEND_ModelInstanceModel(instance, &model), "model");
    check(TRITONBACKEND_ModelName(model, &name), "name");
    bool many = strstr(name, "many") != NULL;
    Wish wish = wish_of(request);
    if (wish.sleep_ms > 0) {
        struct timespec time = {wish.sleep_ms / 1000, wish.sleep_ms % 1000 * 1000000};
        nanosleep(&time, NULL);
    }
    TRITONBACKEND_ResponseFactory *factory;
    check(TRITONBACKEND_ResponseFactoryNew(&factory, request), "factory");
    for (int64_t i = 0; i < (many ? wish.answers : 1); i++)
        answer(request, factory, &wish, many ? 0 : RESPONSE_FINAL);
    if (many)
        check(TRITONBACKEND_ResponseFactorySendFlags(factory, RESPONSE_FINAL), "final");
    check(TRITONBACKEND_ResponseFactoryDelete(factory), "factory");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t at = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    check(TRITONBACKEND_ModelInstanceReportStatistics(instance, request, wish.fail == NULL, at, at, at, at),
        "statistics");
    check(TRITONBACKEND_RequestRelease(request, RELEASE_ALL), "release");
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count);

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        serve(instance, requests[i]);
    return NULL;
}
