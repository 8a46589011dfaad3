/* Request ids, in the form that the worker uses for its log and passes to the callable
 * (pytriton/_protocol/lanes/request_records.py).
 */
#define _GNU_SOURCE
#include "translation/request_id.h"

#include "base/json.h"
#include "base/strings.h"
#include "common/utf8.h"
#include "translation/requests.h"
#include "triton/errors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Maximum size of an id, and of the suffix of an error text as gRPC encodes it (_protocol/errors.py). */
enum { MAX_ID_BYTES = 200, MAX_SUFFIX_BYTES = 300 };

/* Returns a text as one line that is safe for logs and headers, for free(), or NULL if it is empty. */
static char *sanitized_id(const char *text, size_t left)
{
    char *name = left ? malloc(MAX_ID_BYTES + 1) : NULL;
    size_t size = 0;
    while (name && left) {
        size_t step = utf8_char_size(text, left);
        bool shown = step && (uint8_t)*text >= 0x20 && *text != 0x7f;
        size_t read = step ? step : 1, written = shown ? step : 1;
        if (size + written > MAX_ID_BYTES)
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

/* Returns the trace id in a `traceparent`: the second of four fields. */
static char *trace_id(const char *parent)
{
    const char *id = strchr(parent, '-'), *end = id ? strchr(id + 1, '-') : NULL;
    return end && strchr(end + 1, '-') ? sanitized_id(id + 1, (size_t)(end - id - 1)) : NULL;
}

static char *id_from_headers(TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    const char *given = "", *parent = "";
    triton_error_consume(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        const char *key = "";
        int type = -1;
        const void *value = NULL;
        if (triton_error_consume(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value)) ||
            type != PARAMETER_STRING)
            continue;
        if (strcasecmp(key, "x-request-id") == 0)
            given = value;
        else if (strcasecmp(key, "traceparent") == 0)
            parent = value;
    }
    char *name = sanitized_id(given, strlen(given));
    return name ? name : trace_id(parent);
}

static char *id_from_trace(TRITONBACKEND_Request *request)
{
    const char *context = request_trace_context(request);
    char *parent = json_string(json_find((Json){context, context + strlen(context)}, "traceparent"));
    char *name = parent ? trace_id(parent) : NULL;
    free(parent);
    return name;
}

char *request_given_id(const Proxy *proxy, TRITONBACKEND_Request *request)
{
    const char *id = "";
    triton_error_consume(TRITONBACKEND_RequestId(request, &id));
    char *name = sanitized_id(id, strlen(id));
    if (name == NULL)
        name = id_from_headers(request);
    if (name == NULL && (proxy->model->is_triton_python || proxy->tracing))
        name = id_from_trace(request);
    return name;
}

/* Returns the size of a text as a gRPC header, in which some characters are percent-encoded. */
static size_t header_bytes(const char *text)
{
    size_t bytes = 0;
    for (; *text; text++)
        bytes += *text >= 0x20 && *text < 0x7f && *text != '%' ? 1 : 3;
    return bytes;
}

char *request_id(const char *given, const RequestPosition *sent)
{
    return given || sent->batch == 0
        ? strdup_printf("%s", given ? given : "")
        : strdup_printf("%" PRIx64 "-%" PRIx64 "-%" PRIu32, sent->received_ns, sent->batch, sent->place);
}

char *text_with_request_id(const char *text, const char *given, const RequestPosition *sent)
{
    char *name = request_id(given, sent), *end = strdup_printf(" [request id: %s]", name);
    char *whole = strdup_printf("%s%s", text, *name && header_bytes(end) <= MAX_SUFFIX_BYTES ? end : "");
    free(name);
    free(end);
    return whole;
}
