/* Request ids as the worker formats them for its log and the callable: pytriton/_protocol/lanes/request_names.py. */
#define _GNU_SOURCE
#include "translation/names.h"

#include "base/json.h"
#include "base/text.h"
#include "translation/requests.h"
#include "triton/errors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Maximum bytes of an id, and of the end of an error text, as gRPC sends it (_protocol/errors.py). */
enum { LONGEST_NAME = 200, LONGEST_END = 300 };

/* Returns the text as one line that is safe for logs and headers; NULL if it is empty. */
static char *clean(const char *text, size_t left)
{
    char *name = left ? malloc(LONGEST_NAME + 1) : NULL;
    size_t size = 0;
    while (name && left) {
        size_t step = character_size(text, left);
        bool shown = step && (uint8_t)*text >= 0x20 && *text != 0x7f;
        size_t read = step ? step : 1, written = shown ? step : 1;
        if (size + written > LONGEST_NAME)
            break;
        memcpy(name + size, shown ? text : "?", written);
        size += written;
        text += read;
        left -= read;
    }
    if (name)
        name[size] = 0;
    return name;
}

/* Returns the trace id of a `traceparent`: its second field of four. */
static char *trace_id(const char *parent)
{
    const char *id = strchr(parent, '-'), *end = id ? strchr(id + 1, '-') : NULL;
    return end && strchr(end + 1, '-') ? clean(id + 1, (size_t)(end - id - 1)) : NULL;
}

static char *of_headers(TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    const char *given = "", *parent = "";
    failed(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        const char *key = "";
        int type = -1;
        const void *value = NULL;
        if (failed(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value)) || type != PARAMETER_STRING)
            continue;
        if (strcasecmp(key, "x-request-id") == 0)
            given = value;
        else if (strcasecmp(key, "traceparent") == 0)
            parent = value;
    }
    char *name = clean(given, strlen(given));
    return name ? name : trace_id(parent);
}

static char *of_trace(TRITONBACKEND_Request *request)
{
    const char *context = trace_of(request);
    char *parent = json_string(json_find((Json){context, context + strlen(context)}, "traceparent"));
    char *name = parent ? trace_id(parent) : NULL;
    free(parent);
    return name;
}

char *given_name(const Proxy *proxy, TRITONBACKEND_Request *request)
{
    const char *id = "";
    failed(TRITONBACKEND_RequestId(request, &id));
    char *name = clean(id, strlen(id));
    if (name == NULL)
        name = of_headers(request);
    if (name == NULL && (proxy->model->details || proxy->tracing))
        name = of_trace(request);
    return name;
}

/* Returns the size of a text as a gRPC header. */
static size_t cost(const char *text)
{
    size_t bytes = 0;
    for (; *text; text++)
        bytes += *text >= 0x20 && *text < 0x7f && *text != '%' ? 1 : 3;
    return bytes;
}

char *name_of(const char *given, const Sent *sent)
{
    return given || sent->batch == 0
        ? texted("%s", given ? given : "")
        : texted("%" PRIx64 "-%" PRIx64 "-%" PRIu32, sent->taken_ns, sent->batch, sent->place);
}

char *text_with_name(const char *text, const char *given, const Sent *sent)
{
    char *name = name_of(given, sent), *end = texted(" [request id: %s]", name);
    char *whole = texted("%s%s", text, *name && cost(end) <= LONGEST_END ? end : "");
    free(name);
    free(end);
    return whole;
}
