/* Inputs are copied once, from where tritonserver has them into the lane's arena; outputs once, from the worker's
 * memory to where tritonserver wants them. Strings (BYTES) have one form here and there: their length in 4 bytes, then
 * they (KServe v2, binary tensor data extension).
 */
#define _GNU_SOURCE
#include "proxy.h"

#include "chain.h"
#include "json.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION_PARAMETER "pytriton_version"

/* By TRITONSERVER_DataType; the bytes of an element, 0: they differ. */
static const struct {
    const char *name;
    int size;
} datatypes[TYPE_COUNT] = {
    {"INVALID", 0}, {"BOOL", 1}, {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"INT8", 1},
    {"INT16", 2}, {"INT32", 4}, {"INT64", 8}, {"FP16", 2}, {"FP32", 4}, {"FP64", 8}, {"BYTES", 0}, {"BF16", 2}};

static const char *const codes[] = {"UNKNOWN", "INTERNAL", "NOT_FOUND", "INVALID_ARG", "UNAVAILABLE",
    "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"};

/* An error's text for free(), NULL without one. */
static char *text_of(TRITONSERVER_Error *error)
{
    if (error == NULL)
        return NULL;
    char *text = texted("%s", TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
    return text;
}

/* ── copies ─────────────────────────────────────────────────────────────────────────────────────── */

/* Copy to or from a device: by the CUDA library that tritonserver has loaded then. */
static bool copy_on_device(void *to, const void *from, size_t size)
{
    enum { ANY_DIRECTION = 4 }; /* cudaMemcpyDefault */
    int (*copy)(void *, const void *, size_t, int) =
        (int (*)(void *, const void *, size_t, int))(uintptr_t)dlsym(RTLD_DEFAULT, "cudaMemcpy");
    return copy && copy(to, from, size, ANY_DIRECTION) == 0;
}

static bool copied(void *to, const void *from, size_t size, int memory_type)
{
    if (memory_type == MEMORY_GPU)
        return copy_on_device(to, from, size);
    memcpy(to, from, size);
    return true;
}

/* Copy an input, which may lie in pieces, into the arena. */
static char *copy_input(Lane *lane, TRITONBACKEND_Input *input, uint32_t pieces, uint64_t size, uint64_t *offset)
{
    char *failure = arena_allocate(&lane->arena, size, offset);
    uint64_t done = 0;
    for (uint32_t i = 0; i < pieces && failure == NULL; i++) {
        const void *piece = NULL;
        uint64_t piece_size = 0;
        int memory_type = MEMORY_CPU;
        int64_t memory_id = 0;
        failure = text_of(TRITONBACKEND_InputBuffer(input, i, &piece, &piece_size, &memory_type, &memory_id));
        if (failure == NULL && piece_size > size - done)
            failure = texted("it holds more than the %" PRIu64 " bytes that it says", size);
        if (failure == NULL && !copied(lane->arena.map + *offset + done, piece, piece_size, memory_type))
            failure = texted("it lies on a device that cannot be read");
        done += piece_size;
    }
    if (failure == NULL && done != size)
        failure = texted("it holds %" PRIu64 " of %" PRIu64 " bytes", done, size);
    return failure;
}

/* ── requests ───────────────────────────────────────────────────────────────────────────────────── */

static char *put_input(Proxy *proxy, TRITONBACKEND_Request *request, uint32_t index)
{
    Buffer *message = &proxy->message;
    TRITONBACKEND_Input *input;
    const char *name = "";
    int datatype = 0;
    const int64_t *shape;
    uint32_t dims, pieces;
    uint64_t size, offset = 0;
    char *failure = text_of(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    if (failure == NULL)
        failure = text_of(
            TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &size, &pieces));
    if (failure == NULL && (datatype <= TYPE_INVALID || datatype >= TYPE_COUNT))
        failure = texted("its datatype is unknown here");
    if (failure == NULL && size)
        failure = copy_input(proxy->lane, input, pieces, size, &offset);
    if (failure) {
        char *text = texted("model %s: input %s: %s", proxy->model->name, name, failure);
        free(failure);
        return text;
    }
    put_array(message, 6);
    put_string(message, name);
    put_string(message, datatypes[datatype].name);
    put_array(message, dims);
    for (uint32_t i = 0; i < dims; i++)
        put_int(message, shape[i]);
    put_int(message, ARENA_NUMBER);
    put_uint(message, offset);
    put_uint(message, size);
    return NULL;
}

static void put_parameter(Buffer *json, const char *key, int type, const void *value)
{
    char number[32] = "null";
    buffer_puts(json, json->size > 1 ? "," : "");
    json_put_string(json, key, strlen(key));
    buffer_puts(json, ":");
    if (type == PARAMETER_STRING) {
        json_put_string(json, value, strlen(value));
        return;
    }
    if (type == PARAMETER_INT)
        snprintf(number, sizeof number, "%" PRId64, *(const int64_t *)value);
    else if (type == PARAMETER_BOOL)
        snprintf(number, sizeof number, "%s", *(const bool *)value ? "true" : "false");
    else if (type == PARAMETER_DOUBLE)
        snprintf(number, sizeof number, "%.17g", *(const double *)value);
    buffer_puts(json, number);
}

/* A request's parameters, as JSON in a string. A chain of calls that is none of ours gets another name. */
static char *put_parameters(Proxy *proxy, TRITONBACKEND_Request *request, bool *circular)
{
    const char *version = proxy->model->version;
    uint32_t count = 0;
    char *failure = text_of(TRITONBACKEND_RequestParameterCount(request, &count));
    if (failure || (count == 0 && version == NULL)) {
        put_text(&proxy->message, "", 0);
        return failure;
    }
    Buffer json = {0};
    buffer_puts(&json, "{");
    for (uint32_t i = 0; i < count && failure == NULL; i++) {
        const char *key = "";
        int type = -1;
        const void *value = NULL;
        failure = text_of(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
        if (failure)
            break;
        if (type == PARAMETER_STRING && strcmp(key, CHAIN_PARAMETER) == 0) {
            if (!chain_is_sealed(value))
                key = NO_CHAIN_PARAMETER; /* the worker would hand it on */
            else if (chain_has(value, proxy->worker, &proxy->avoid, &proxy->avoided))
                *circular = true;
        }
        if (version == NULL || strcmp(key, VERSION_PARAMETER) != 0)
            put_parameter(&json, key, type, value);
    }
    if (version)
        put_parameter(&json, VERSION_PARAMETER, PARAMETER_STRING, version);
    buffer_puts(&json, "}");
    proxy->message.failed |= json.failed;
    put_text(&proxy->message, (const char *)json.data, json.failed ? 0 : json.size);
    buffer_free(&json);
    return failure;
}

static int by_name(const void *one, const void *other)
{
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

static char *put_requested(Proxy *proxy, TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    char *failure = text_of(TRITONBACKEND_RequestOutputCount(request, &count));
    const char **names = failure ? NULL : calloc(count + 1, sizeof *names);
    for (uint32_t i = 0; i < count && names && failure == NULL; i++)
        failure = text_of(TRITONBACKEND_RequestOutputName(request, i, &names[i]));
    if (names == NULL || failure) {
        free(names);
        return failure ? failure : texted("out of memory");
    }
    if (proxy->model->details) /* a model.py sees them sorted */
        qsort(names, count, sizeof *names, by_name);
    put_array(&proxy->message, count);
    for (uint32_t i = 0; i < count; i++)
        put_string(&proxy->message, names[i]);
    free(names);
    return NULL;
}

static const char *trace_of(TRITONBACKEND_Request *request)
{
    TRITONSERVER_InferenceTrace *trace = NULL;
    const char *context = NULL;
    if (failed(TRITONBACKEND_RequestTrace(request, &trace)) || trace == NULL)
        return "";
    if (failed(TRITONSERVER_InferenceTraceContext(trace, &context)) || context == NULL)
        return "";
    return context;
}

/* What only a Triton Python model asks of a request. */
static void put_details(Proxy *proxy, TRITONBACKEND_Request *request)
{
    Buffer *message = &proxy->message;
    const char *id = "", *correlation = "", *trace = trace_of(request);
    uint64_t number = 0, timeout_us = 0;
    uint32_t flags = 0;
    failed(TRITONBACKEND_RequestId(request, &id));
    put_string(message, id);
    put_array(message, 4);
    if (!failed(TRITONBACKEND_RequestCorrelationId(request, &number)))
        put_uint(message, number);
    else if (!failed(TRITONBACKEND_RequestCorrelationIdString(request, &correlation)))
        put_string(message, correlation);
    else
        put_int(message, 0);
    failed(TRITONBACKEND_RequestFlags(request, &flags));
    put_uint(message, flags);
    failed(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout_us));
    put_uint(message, timeout_us);
    if (*trace)
        put_string(message, trace);
    else
        put_nil(message);
}

static void put_trace(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, uint64_t begun_ns)
{
    put_array(&proxy->message, 2);
    put_uint(&proxy->message, begun_ns);
    put_array(&proxy->message, count);
    for (uint32_t i = 0; i < count; i++)
        put_string(&proxy->message, trace_of(requests[i]));
}

static bool is_traced(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    if (proxy->tracing)
        for (uint32_t i = 0; i < count; i++)
            if (*trace_of(requests[i]))
                return true;
    return false;
}

char *put_batch(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool *circular)
{
    uint64_t begun_ns = proxy->tracing ? epoch_ns() : 0;
    Buffer *message = &proxy->message;
    bool traced = is_traced(proxy, requests, count);
    *circular = false;
    proxy->avoid.size = 0;
    proxy->avoided = 0;
    arena_reset(&proxy->lane->arena);
    message->size = 0;
    message->failed = false;
    put_array(message, traced ? 4 : 3);
    put_string(message, "Batch");
    put_uint(message, ++proxy->batch);
    put_array(message, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t inputs = 0;
        char *failure = text_of(TRITONBACKEND_RequestInputCount(requests[i], &inputs));
        put_array(message, proxy->model->details ? 5 : 3);
        put_array(message, inputs);
        for (uint32_t k = 0; k < inputs && failure == NULL; k++)
            failure = put_input(proxy, requests[i], k);
        if (failure == NULL)
            failure = put_parameters(proxy, requests[i], circular);
        if (failure == NULL)
            failure = put_requested(proxy, requests[i]);
        if (failure)
            return failure;
        if (proxy->model->details)
            put_details(proxy, requests[i]);
    }
    if (traced)
        put_trace(proxy, requests, count, begun_ns);
    return message->failed ? texted("model %s: out of memory", proxy->model->name) : NULL;
}

uint64_t rows_of(const Model *model, TRITONBACKEND_Request *request)
{
    TRITONBACKEND_Input *input;
    const int64_t *shape;
    uint32_t dims = 0;
    if (!model->batching || failed(TRITONBACKEND_RequestInputByIndex(request, 0, &input)) ||
        failed(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, NULL, NULL)) || dims == 0)
        return 1;
    return (uint64_t)shape[0];
}

/* ── responses ──────────────────────────────────────────────────────────────────────────────────── */

enum { MOST_DIMS = 64 };

/* A tensor of the worker's, checked. */
typedef struct {
    char *name;
    int datatype;
    int64_t shape[MOST_DIMS];
    uint32_t dims;
    int64_t size;
    const uint8_t *bytes;
} Tensor;

static bool wrong(Lane *lane, const char *name, const char *what)
{
    snprintf(lane->fault, sizeof lane->fault, "the worker's output %.60s %s", name ? name : "", what);
    return false;
}

/* Whether so many strings fill so many bytes exactly. */
static bool are_strings(const uint8_t *bytes, uint64_t size, uint64_t count)
{
    while (count && size >= 4) {
        uint32_t length;
        memcpy(&length, bytes, 4);
        if (length > size - 4)
            return false;
        bytes += 4 + (uint64_t)length;
        size -= 4 + (uint64_t)length;
        count--;
    }
    return count == 0 && size == 0;
}

/* Read one tensor; false: `lane->fault` says what is wrong. The name is for free(). */
static bool get_tensor(Lane *lane, Reader *reader, Tensor *tensor)
{
    uint32_t fields = get_array(reader);
    uint64_t elements = 1, size;
    tensor->name = text_copy(get_text(reader));
    Text datatype = get_text(reader);
    for (tensor->datatype = TYPE_COUNT - 1; tensor->datatype > 0; tensor->datatype--)
        if (text_is(datatype, datatypes[tensor->datatype].name))
            break;
    tensor->dims = get_array(reader);
    if (tensor->dims > MOST_DIMS)
        return wrong(lane, tensor->name, "has too many dimensions");
    for (uint32_t i = 0; i < tensor->dims; i++) {
        tensor->shape[i] = get_int(reader);
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(elements, (uint64_t)tensor->shape[i], &elements))
            return wrong(lane, tensor->name, "has an impossible shape");
    }
    int64_t memory = get_int(reader), offset = get_int(reader);
    tensor->size = get_int(reader);
    skip_rest(reader, fields, 6);
    if (reader->malformed || tensor->name == NULL || tensor->datatype == TYPE_INVALID)
        return wrong(lane, tensor->name, "is described in a malformed way");
    tensor->bytes = (const uint8_t *)"";
    if (tensor->size != 0) {
        tensor->bytes = lane_memory(lane, memory, offset, tensor->size);
        if (tensor->bytes == NULL)
            return false;
    }
    int element = datatypes[tensor->datatype].size;
    if (element ? __builtin_mul_overflow(elements, (uint64_t)element, &size) || (int64_t)size != tensor->size
                : !are_strings(tensor->bytes, (uint64_t)tensor->size, elements))
        return wrong(lane, tensor->name, "has another size than its shape says");
    return true;
}

static bool is_requested(TRITONBACKEND_Request *request, const char *output)
{
    uint32_t count = 0;
    const char *name;
    failed(TRITONBACKEND_RequestOutputCount(request, &count));
    for (uint32_t i = 0; i < count; i++)
        if (!failed(TRITONBACKEND_RequestOutputName(request, i, &name)) && strcmp(name, output) == 0)
            return true;
    return count == 0;
}

/* Give tritonserver one output; its error if it does not take it. */
static TRITONSERVER_Error *fill(TRITONBACKEND_Response *response, const Tensor *tensor)
{
    TRITONBACKEND_Output *output;
    void *buffer = NULL;
    int memory_type = MEMORY_CPU;
    int64_t memory_id = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseOutput(
        response, &output, tensor->name, tensor->datatype, tensor->shape, tensor->dims);
    if (error == NULL)
        error = TRITONBACKEND_OutputBuffer(output, &buffer, (uint64_t)tensor->size, &memory_type, &memory_id);
    if (error == NULL && tensor->size && !copied(buffer, tensor->bytes, (size_t)tensor->size, memory_type))
        error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, "an output cannot be copied to the device it is wanted on");
    return error;
}

static void set_parameters(TRITONBACKEND_Response *response, Text text)
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
            failed(TRITONBACKEND_ResponseSetStringParameter(response, key, value));
        else if (json_is(member.value, "true") || json_is(member.value, "false"))
            failed(TRITONBACKEND_ResponseSetBoolParameter(response, key, *number == 't'));
        else if (*end == 0 && errno == 0)
            failed(TRITONBACKEND_ResponseSetIntParameter(response, key, integer));
        else
            failed(TRITONBACKEND_ResponseSetDoubleParameter(response, key, strtod(number, NULL)));
        free(key);
        free(value);
    }
}

static TRITONSERVER_Error_Code code_named(Text name)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (text_is(name, codes[i]))
            return (TRITONSERVER_Error_Code)i;
    return ERROR_INTERNAL;
}

/* Of ResponseDetails. */
typedef struct {
    Text code, parameters;
    bool reschedule;
} Details;

static void get_details(Reader *reader, Details *details)
{
    if (get_nil(reader))
        return;
    uint32_t fields = get_array(reader);
    details->code = get_text(reader);
    details->parameters = get_text(reader);
    get_bool(reader); /* final, and empty: of models that answer many times */
    get_bool(reader);
    details->reschedule = get_bool(reader);
    skip_rest(reader, fields, 5);
}

/* Read the outputs into a response. */
static bool get_outputs(
    Lane *lane, Reader *answer, TRITONBACKEND_Request *request, TRITONBACKEND_Response *response,
    TRITONSERVER_Error **error)
{
    uint32_t count = get_array(answer);
    for (uint32_t i = 0; i < count; i++) {
        Tensor tensor = {0};
        bool right = get_tensor(lane, answer, &tensor);
        if (right && *error == NULL && is_requested(request, tensor.name))
            *error = fill(response, &tensor);
        free(tensor.name);
        if (!right)
            return false;
    }
    return !answer->malformed || wrong(lane, NULL, "is described in a malformed way");
}

bool pass_response(Proxy *proxy, TRITONBACKEND_Request *request, Reader *answer, bool *is_failed, bool *reschedule)
{
    Lane *lane = proxy->lane;
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, request);
    if (error) { /* then tritonserver cannot be answered at all */
        log_error("model %s: %s", proxy->model->name, TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
        skip(answer, 0);
        *is_failed = true;
        return true;
    }
    Details details = {{"", 0}, {"", 0}, false};
    uint32_t fields = get_array(answer);
    bool right = get_outputs(lane, answer, request, response, &error), has_text = !get_nil(answer);
    Text text = has_text ? get_text(answer) : (Text){"", 0};
    get_details(answer, &details);
    skip_rest(answer, fields, 3);
    if (answer->malformed && right)
        right = wrong(lane, NULL, "came in a malformed response");
    *reschedule = right && details.reschedule;
    if (!right || *reschedule) {
        failed(TRITONBACKEND_ResponseDelete(response));
        failed(error);
        return right;
    }
    if (has_text) {
        failed(error);
        char *copy = text_copy(text);
        error = TRITONSERVER_ErrorNew(code_named(details.code), copy ? copy : "");
        free(copy);
    }
    *is_failed = error != NULL;
    set_parameters(response, details.parameters);
    failed(TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, error));
    failed(error);
    return true;
}

void send_error(TRITONBACKEND_Request *request, TRITONSERVER_Error_Code code, const char *text)
{
    TRITONBACKEND_Response *response;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseNew(&response, request);
    if (error) {
        log_error("a request cannot be answered: %s", TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
        return;
    }
    error = TRITONSERVER_ErrorNew(code, text ? text : "out of memory");
    failed(TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
}
