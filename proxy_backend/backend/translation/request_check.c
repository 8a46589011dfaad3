/* Finds requests whose contents no worker can serve. Each is answered individually before its batch goes to a worker,
 * where it would fail the whole batch.
 *
 * tritonserver does not validate the texts of HTTP requests. Its core (2.51) counts the strings of a BYTES input but
 * trusts the length of the last one.
 */
#define _GNU_SOURCE
#include "translation/request_check.h"

#include "common/clock.h"
#include "base/strings.h"
#include "common/utf8.h"
#include "translation/requests.h"
#include "translation/responses.h"
#include "triton/errors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Read position in a BYTES input, which may be split at any byte. */
typedef struct {
    uint64_t strings; /* number of strings that have not begun */
    uint64_t bytes;   /* remaining bytes of the current string */
    uint32_t length;  /* the part of the next string's length that has been read */
    int digits;       /* number of its 4 bytes that have been read */
} Strings;

static bool skip_strings(Strings *strings, const uint8_t *at, uint64_t size)
{
    while (size) {
        uint64_t step = strings->bytes < size ? strings->bytes : size;
        at += step;
        size -= step;
        strings->bytes -= step;
        if (size == 0)
            break;
        if (strings->strings == 0)
            return false;
        strings->length |= (uint32_t)*at++ << (8 * strings->digits++);
        size--;
        if (strings->digits == 4) {
            strings->bytes = strings->length;
            strings->length = 0;
            strings->digits = 0;
            strings->strings--;
        }
    }
    return true;
}

/* Returns whether a BYTES input contains exactly the number of complete strings that its shape requires. */
static bool holds_strings(TRITONBACKEND_Input *input, const int64_t *shape, uint32_t dims, uint32_t pieces)
{
    Strings strings = {.strings = 1};
    for (uint32_t i = 0; i < dims; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(strings.strings, (uint64_t)shape[i], &strings.strings))
            return false;
    for (uint32_t i = 0; i < pieces; i++) {
        const void *piece = NULL;
        uint64_t size = 0;
        int memory_type = MEMORY_CPU;
        int64_t memory_id = 0;
        if (triton_error_consume(TRITONBACKEND_InputBuffer(input, i, &piece, &size, &memory_type, &memory_id)) ||
            memory_type == MEMORY_GPU)
            return true; /* The code that copies the input reports the error. */
        if (!skip_strings(&strings, piece, size))
            return false;
    }
    return strings.strings == 0 && strings.bytes == 0 && strings.digits == 0;
}

static const char *find_input_fault(TRITONBACKEND_Request *request, const char **name)
{
    uint32_t count = 0;
    triton_error_consume(TRITONBACKEND_RequestInputCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        TRITONBACKEND_Input *input;
        const int64_t *shape;
        uint64_t size;
        uint32_t dims, pieces;
        int datatype = TYPE_INVALID;
        if (!triton_error_consume(TRITONBACKEND_RequestInputByIndex(request, i, &input)) &&
            !triton_error_consume(
                TRITONBACKEND_InputProperties(input, name, &datatype, &shape, &dims, &size, &pieces)) &&
            datatype == TYPE_BYTES && input_element_bytes(request, input, shape, dims, datatype, size) == size &&
            !holds_strings(input, shape, dims, pieces))
            return "does not contain as many length-prefixed strings as its shape requires";
    }
    return NULL;
}

static bool is_unicode(const char *text)
{
    return utf8_is_valid((Slice){text, strlen(text)});
}

static bool has_invalid_parameter(TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    triton_error_consume(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        const char *key = "";
        int type = -1;
        const void *value = "";
        if (!triton_error_consume(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value)) &&
            (!is_unicode(key) || (type == PARAMETER_STRING && !is_unicode(value))))
            return true;
    }
    return false;
}

/* Returns the name of a text of the request that is not valid Unicode, or NULL. Tensor names need no check:
 * tritonserver looks them up.
 */
static const char *find_text_fault(const Proxy *proxy, TRITONBACKEND_Request *request)
{
    const char *id = "", *correlation = "";
    if (has_invalid_parameter(request))
        return "a request parameter, its key or its value,";
    if (proxy->model->is_triton_python) {
        triton_error_consume(TRITONBACKEND_RequestId(request, &id));
        if (!is_unicode(id))
            return "the request id";
        if (!triton_error_consume(TRITONBACKEND_RequestCorrelationIdString(request, &correlation)) &&
            !is_unicode(correlation))
            return "the sequence id";
    }
    if ((proxy->model->is_triton_python || proxy->tracing) && !is_unicode(request_trace_context(request)))
        return "the trace context";
    return NULL;
}

/* Returns why a sequence's id does not fit into the model's numeric control input, for free(), or NULL if it fits.
 * Otherwise, the core (2.51) would write uninitialised or truncated bytes, and the model would confuse sequences.
 */
static char *check_sequence_id(const Model *model, TRITONBACKEND_Request *request)
{
    const char *text = NULL;
    uint64_t number = 0;
    if (model->max_sequence_id == 0)
        return NULL;
    if (!triton_error_consume(TRITONBACKEND_RequestCorrelationIdString(request, &text)) && text && *text)
        return strdup_printf("model %s: the sequence id is a string, but the model's control input for it is a number: "
                             "send a number, or declare the control's data_type as TYPE_STRING",
            model->name);
    if (!triton_error_consume(TRITONBACKEND_RequestCorrelationId(request, &number)) && number > model->max_sequence_id)
        return strdup_printf("model %s: the sequence id %" PRIu64
                             " is too large for the model's control input, whose maximum is %" PRIu64,
            model->name, number, model->max_sequence_id);
    return NULL;
}

/* Returns why a request cannot be served, for free(), or NULL if it can. */
static char *request_fault(const Proxy *proxy, TRITONBACKEND_Request *request)
{
    const char *name = "", *what = find_text_fault(proxy, request);
    if (what)
        return strdup_printf("model %s: %s is not valid UTF-8", proxy->model->name, what);
    char *wrong_id = check_sequence_id(proxy->model, request);
    if (wrong_id)
        return wrong_id;
    what = find_input_fault(request, &name);
    return what ? strdup_printf("model %s: input %s %s", proxy->model->name, name, what) : NULL;
}

uint32_t requests_reject_invalid(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    uint64_t begun_ns = clock_ns();
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *text = request_fault(proxy, requests[i]);
        if (text == NULL) {
            requests[kept++] = requests[i];
            continue;
        }
        response_send_error(proxy, &(Receiver){.request = requests[i]}, ERROR_INVALID_ARG, text, true);
        uint64_t now_ns = clock_ns();
        triton_error_consume(TRITONBACKEND_ModelInstanceReportStatistics(
            proxy->instance, requests[i], false, begun_ns, begun_ns, now_ns, now_ns));
        triton_error_consume(TRITONBACKEND_RequestRelease(requests[i], RELEASE_ALL));
        free(text);
    }
    return kept;
}
