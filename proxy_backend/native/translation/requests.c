/* Conversion of tritonserver's requests to a Batch on the lane. Inputs are copied once, from tritonserver's memory to
 * the lane's arena. Strings (BYTES) have the same format on both sides: a 4-byte length, then the bytes (KServe v2,
 * binary tensor data extension).
 */
#define _GNU_SOURCE
#include "translation/requests.h"

#include "base/clock.h"
#include "base/text.h"
#include "calls/sealed_chain.h"
#include "lane/idle.h"
#include "triton/datatypes.h"
#include "triton/errors.h"
#include "triton/parameters.h"
#include "wire/protocol.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Copy an input, which may be in pieces, to the arena. */
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
            failure = texted("it holds more than the declared %" PRIu64 " bytes", size);
        if (failure == NULL && !copied(lane->arena.map + *offset + done, piece, piece_size, memory_type))
            failure = texted("it lies on a device that cannot be read");
        done += piece_size;
    }
    if (failure == NULL && done != size)
        failure = texted("it holds %" PRIu64 " of %" PRIu64 " bytes", done, size);
    return failure;
}

/* The size of a string correlation id in a control input: the core (2.51) always passes the maximum size, with bytes
 * of former ids behind the current one. For a numeric id, it passes uninitialised bytes.
 */
enum { CORRELATION_BYTES = 4 + 128 };

uint64_t counted_bytes(TRITONBACKEND_Request *request, TRITONBACKEND_Input *input, const int64_t *shape, uint32_t dims,
    int datatype, uint64_t size)
{
    const void *piece = NULL;
    const char *id = NULL;
    uint64_t piece_size = 0;
    int memory_type = MEMORY_CPU;
    int64_t memory_id = 0;
    if (datatype != TYPE_BYTES || size != CORRELATION_BYTES)
        return size;
    for (uint32_t i = 0; i < dims; i++)
        if (shape[i] != 1)
            return size;
    if (failed(TRITONBACKEND_RequestCorrelationIdString(request, &id)) || id == NULL || *id == 0 ||
        failed(TRITONBACKEND_InputBuffer(input, 0, &piece, &piece_size, &memory_type, &memory_id)) ||
        memory_type == MEMORY_GPU || piece_size != size)
        return size;
    uint64_t length = strlen(id);
    uint8_t head[4];
    for (int i = 0; i < 4; i++)
        head[i] = (uint8_t)(length >> (8 * i));
    if (length > size - 4 || memcmp(piece, head, 4) != 0 || memcmp((const uint8_t *)piece + 4, id, length) != 0)
        return size;
    return 4 + length;
}

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
        failure = text_of(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &size, &pieces));
    if (failure == NULL && (datatype <= TYPE_INVALID || datatype >= TYPE_COUNT))
        failure = texted("its datatype is unknown here");
    if (failure == NULL && size)
        failure = copy_input(proxy->lane, input, pieces, size, &offset);
    if (failure) {
        char *text = texted("model %s: input %s: %s", proxy->model->name, name, failure);
        free(failure);
        return text;
    }
    put_array(message, TENSOR_REF_SIZE);
    put_string(message, name);
    put_string(message, datatypes[datatype].name);
    put_array(message, dims);
    for (uint32_t i = 0; i < dims; i++)
        put_int(message, shape[i]);
    put_int(message, ARENA_MEMORY);
    put_uint(message, offset);
    put_uint(message, counted_bytes(request, input, shape, dims, datatype, size));
    return NULL;
}

/* The maximum length of a request's id in the log. */
enum { LONGEST_ID = 200 };

/* Write a request's parameters as JSON in a string. A call chain that we did not seal is renamed. */
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
                key = NO_CHAIN_PARAMETER; /* the worker would pass it on */
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
    if (proxy->model->details) /* a model.py gets them sorted */
        qsort(names, count, sizeof *names, by_name);
    put_array(&proxy->message, count);
    for (uint32_t i = 0; i < count; i++)
        put_string(&proxy->message, names[i]);
    free(names);
    return NULL;
}

const char *trace_of(TRITONBACKEND_Request *request)
{
    TRITONSERVER_InferenceTrace *trace = NULL;
    const char *context = NULL;
    if (failed(TRITONBACKEND_RequestTrace(request, &trace)) || trace == NULL)
        return "";
    if (failed(TRITONSERVER_InferenceTraceContext(trace, &context)) || context == NULL)
        return "";
    return context;
}

/* Write the details that only a Triton Python model uses. */
static void put_details(Proxy *proxy, TRITONBACKEND_Request *request)
{
    Buffer *message = &proxy->message;
    const char *id = "", *correlation = "", *trace = trace_of(request);
    uint64_t number = 0, timeout_us = 0;
    uint32_t flags = 0;
    failed(TRITONBACKEND_RequestId(request, &id));
    put_string(message, id);
    put_array(message, REQUEST_DETAILS_SIZE);
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
    put_array(&proxy->message, BATCH_TRACE_SIZE);
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

char *put_batch(
    Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool alone, uint64_t taken_ns, bool *circular)
{
    uint64_t begun_ns = proxy->tracing ? epoch_ns() : 0, rows = 0;
    Buffer *message = &proxy->message;
    bool traced = is_traced(proxy, requests, count);
    *circular = false;
    proxy->avoid.size = 0;
    proxy->avoided = 0;
    idle_end(&proxy->lane->arena);
    arena_reset(&proxy->lane->arena);
    message->size = 0;
    message->failed = false;
    bool reads = proxy->lane->peer.readable;
    put_array(message, BATCH_SIZE);
    put_string(message, BATCH_NAME);
    put_uint(message, ++proxy->batch);
    put_array(message, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t inputs = 0;
        rows += rows_of(proxy->model, requests[i]);
        char *failure = text_of(TRITONBACKEND_RequestInputCount(requests[i], &inputs));
        const char *id = "";
        if (!proxy->model->details) /* otherwise the id is one of the parameters */
            failed(TRITONBACKEND_RequestId(requests[i], &id));
        put_array(message, proxy->model->details ? REQUEST_REF_SIZE : *id ? REQUEST_REF_details : REQUEST_REF_LEAST);
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
        else if (*id)
            put_clean(message, id, LONGEST_ID); /* for the worker's log */
    }
    if (traced)
        put_trace(proxy, requests, count, begun_ns);
    else
        put_nil(message);
    put_bool(message, reads);
    put_bool(message, alone);
    put_uint(message, taken_ns);
    put_uint(message, rows);
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
