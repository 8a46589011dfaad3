/* Converts tritonserver's requests to a Batch message. Inputs are copied once, from tritonserver's memory to the
 * lane's arena. Strings (BYTES) have the same format on both sides: a 4-byte length, then the bytes (KServe v2, binary
 * tensor data extension).
 */
#define _GNU_SOURCE
#include "translation/requests.h"

#include "common/clock.h"
#include "base/strings.h"
#include "calls/call_chain.h"
#include "lane/memory.h"
#include "triton/datatypes.h"
#include "triton/errors.h"
#include "triton/parameters.h"
#include "wire/protocol.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Copy an input, which may consist of several pieces, to the arena. */
static char *copy_input(Lane *lane, TRITONBACKEND_Input *input, uint32_t pieces, uint64_t size, uint64_t *offset)
{
    char *failure = arena_allocate(&lane->arena, size, offset);
    uint64_t done = 0;
    for (uint32_t i = 0; i < pieces && failure == NULL; i++) {
        const void *piece = NULL;
        uint64_t piece_size = 0;
        int memory_type = MEMORY_CPU;
        int64_t memory_id = 0;
        failure = triton_error_text(TRITONBACKEND_InputBuffer(input, i, &piece, &piece_size, &memory_type, &memory_id));
        if (failure == NULL && piece_size > size - done)
            failure = strdup_printf("it has more than the declared %" PRIu64 " bytes", size);
        if (failure == NULL && !tensor_copy(lane->arena.map + *offset + done, piece, piece_size, memory_type))
            failure = strdup_printf("it is on a device that cannot be read");
        done += piece_size;
    }
    if (failure == NULL && done != size)
        failure = strdup_printf("it holds %" PRIu64 " of %" PRIu64 " bytes", done, size);
    return failure;
}

/* Size of a string correlation id in a control input. The core (2.51) always passes the maximum size, with remains of
 * earlier ids after the current one. For a numeric id, it passes uninitialised bytes.
 */
enum { CORRELATION_BYTES = 4 + 128 };

uint64_t input_element_bytes(TRITONBACKEND_Request *request, TRITONBACKEND_Input *input, const int64_t *shape,
    uint32_t dims, int datatype, uint64_t size)
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
    if (triton_error_consume(TRITONBACKEND_RequestCorrelationIdString(request, &id)) || id == NULL || *id == 0 ||
        triton_error_consume(TRITONBACKEND_InputBuffer(input, 0, &piece, &piece_size, &memory_type, &memory_id)) ||
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
    char *failure = triton_error_text(TRITONBACKEND_RequestInputByIndex(request, index, &input));
    if (failure == NULL)
        failure =
            triton_error_text(TRITONBACKEND_InputProperties(input, &name, &datatype, &shape, &dims, &size, &pieces));
    if (failure == NULL && (datatype <= TYPE_INVALID || datatype >= TYPE_COUNT))
        failure = strdup_printf("its datatype is not supported");
    if (failure == NULL && size)
        failure = copy_input(proxy->lane, input, pieces, size, &offset);
    if (failure) {
        char *text = strdup_printf("model %s: input %s: %s", proxy->model->name, name, failure);
        free(failure);
        return text;
    }
    msgpack_put_array(message, TENSOR_REF_SIZE);
    msgpack_put_string(message, name);
    msgpack_put_string(message, datatypes[datatype].name);
    msgpack_put_array(message, dims);
    for (uint32_t i = 0; i < dims; i++)
        msgpack_put_int(message, shape[i]);
    msgpack_put_int(message, ARENA_MEMORY);
    msgpack_put_uint(message, offset);
    msgpack_put_uint(message, input_element_bytes(request, input, shape, dims, datatype, size));
    return NULL;
}

/* Maximum size of a request id in the worker's log. */
enum { MAX_ID_BYTES = 200 };

/* Write a request's parameters as JSON in a string. A call chain without a valid seal is renamed. */
static char *put_parameters(Proxy *proxy, TRITONBACKEND_Request *request, bool *circular)
{
    const char *version = proxy->model->version;
    uint32_t count = 0;
    char *failure = triton_error_text(TRITONBACKEND_RequestParameterCount(request, &count));
    if (failure || (count == 0 && version == NULL)) {
        msgpack_put_text(&proxy->message, "", 0);
        return failure;
    }
    Buffer json = {0};
    buffer_put_string(&json, "{");
    for (uint32_t i = 0; i < count && failure == NULL; i++) {
        const char *key = "";
        int type = -1;
        const void *value = NULL;
        failure = triton_error_text(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value));
        if (failure)
            break;
        if (type == PARAMETER_STRING && strcmp(key, CHAIN_PARAMETER) == 0) {
            if (!chain_seal_is_valid(value))
                key = NO_CHAIN_PARAMETER; /* Rename it, because the worker would pass it on. */
            else if (chain_has_worker(value, proxy->worker, &proxy->avoid, &proxy->avoid_count))
                *circular = true;
        }
        if (version == NULL || strcmp(key, VERSION_PARAMETER) != 0)
            put_parameter(&json, key, type, value);
    }
    if (version)
        put_parameter(&json, VERSION_PARAMETER, PARAMETER_STRING, version);
    buffer_put_string(&json, "}");
    proxy->message.failed |= json.failed;
    msgpack_put_text(&proxy->message, json.data, json.failed ? 0 : json.size);
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
    char *failure = triton_error_text(TRITONBACKEND_RequestOutputCount(request, &count));
    const char **names = failure ? NULL : calloc(count + 1, sizeof *names);
    for (uint32_t i = 0; i < count && names && failure == NULL; i++)
        failure = triton_error_text(TRITONBACKEND_RequestOutputName(request, i, &names[i]));
    if (names == NULL || failure) {
        free(names);
        return failure ? failure : strdup_printf("out of memory");
    }
    if (proxy->model->is_triton_python) /* A model.py gets the names sorted. */
        qsort(names, count, sizeof *names, by_name);
    msgpack_put_array(&proxy->message, count);
    for (uint32_t i = 0; i < count; i++)
        msgpack_put_string(&proxy->message, names[i]);
    free(names);
    return NULL;
}

const char *request_trace_context(TRITONBACKEND_Request *request)
{
    TRITONSERVER_InferenceTrace *trace = NULL;
    const char *context = NULL;
    if (triton_error_consume(TRITONBACKEND_RequestTrace(request, &trace)) || trace == NULL)
        return "";
    if (triton_error_consume(TRITONSERVER_InferenceTraceContext(trace, &context)) || context == NULL)
        return "";
    return context;
}

/* Write the details that only Triton Python models use. */
static void put_details(Proxy *proxy, TRITONBACKEND_Request *request)
{
    Buffer *message = &proxy->message;
    const char *id = "", *correlation = "", *trace = request_trace_context(request);
    uint64_t number = 0, timeout_us = 0;
    uint32_t flags = 0;
    triton_error_consume(TRITONBACKEND_RequestId(request, &id));
    msgpack_put_string(message, id);
    msgpack_put_array(message, REQUEST_DETAILS_SIZE);
    if (!triton_error_consume(TRITONBACKEND_RequestCorrelationId(request, &number)))
        msgpack_put_uint(message, number);
    else if (!triton_error_consume(TRITONBACKEND_RequestCorrelationIdString(request, &correlation)))
        msgpack_put_string(message, correlation);
    else
        msgpack_put_int(message, 0);
    triton_error_consume(TRITONBACKEND_RequestFlags(request, &flags));
    msgpack_put_uint(message, flags);
    triton_error_consume(TRITONBACKEND_InferenceRequestTimeoutMicroseconds(request, &timeout_us));
    msgpack_put_uint(message, timeout_us);
    if (*trace)
        msgpack_put_string(message, trace);
    else
        msgpack_put_nil(message);
}

static void put_trace(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, uint64_t begun_ns)
{
    msgpack_put_array(&proxy->message, BATCH_TRACE_SIZE);
    msgpack_put_uint(&proxy->message, begun_ns);
    msgpack_put_array(&proxy->message, count);
    for (uint32_t i = 0; i < count; i++)
        msgpack_put_string(&proxy->message, request_trace_context(requests[i]));
}

static bool is_traced(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    if (proxy->tracing)
        for (uint32_t i = 0; i < count; i++)
            if (*request_trace_context(requests[i]))
                return true;
    return false;
}

char *batch_encode(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool is_isolated,
    uint64_t received_ns, bool *circular)
{
    uint64_t begun_ns = proxy->tracing ? clock_realtime_ns() : 0, rows = 0;
    Buffer *message = &proxy->message;
    bool traced = is_traced(proxy, requests, count);
    *circular = false;
    proxy->avoid.size = 0;
    proxy->avoid_count = 0;
    arena_trim_cancel(&proxy->lane->arena);
    arena_reset(&proxy->lane->arena);
    buffer_clear(message);
    bool reads = proxy->lane->peer.readable;
    msgpack_put_array(message, BATCH_SIZE);
    msgpack_put_string(message, BATCH_NAME);
    msgpack_put_uint(message, ++proxy->batch);
    msgpack_put_array(message, count);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t inputs = 0;
        rows += request_rows(proxy->model, requests[i]);
        char *failure = triton_error_text(TRITONBACKEND_RequestInputCount(requests[i], &inputs));
        const char *id = "";
        if (!proxy->model->is_triton_python) /* For other models, the id is one of the parameters. */
            triton_error_consume(TRITONBACKEND_RequestId(requests[i], &id));
        msgpack_put_array(message,
            proxy->model->is_triton_python ? REQUEST_REF_SIZE
                : *id                      ? REQUEST_REF_details
                                           : REQUEST_REF_LEAST);
        msgpack_put_array(message, inputs);
        for (uint32_t k = 0; k < inputs && failure == NULL; k++)
            failure = put_input(proxy, requests[i], k);
        if (failure == NULL)
            failure = put_parameters(proxy, requests[i], circular);
        if (failure == NULL)
            failure = put_requested(proxy, requests[i]);
        if (failure)
            return failure;
        if (proxy->model->is_triton_python)
            put_details(proxy, requests[i]);
        else if (*id)
            msgpack_put_sanitized(message, id, MAX_ID_BYTES); /* The worker logs the id. */
    }
    if (traced)
        put_trace(proxy, requests, count, begun_ns);
    else
        msgpack_put_nil(message);
    msgpack_put_bool(message, reads);
    msgpack_put_bool(message, is_isolated);
    msgpack_put_uint(message, received_ns);
    msgpack_put_uint(message, rows);
    return message->failed ? strdup_printf("model %s: out of memory", proxy->model->name) : NULL;
}

uint64_t request_rows(const Model *model, TRITONBACKEND_Request *request)
{
    TRITONBACKEND_Input *input;
    const int64_t *shape;
    uint32_t dims = 0;
    if (!model->has_batch_axis || triton_error_consume(TRITONBACKEND_RequestInputByIndex(request, 0, &input)) ||
        triton_error_consume(TRITONBACKEND_InputProperties(input, NULL, NULL, &shape, &dims, NULL, NULL)) || dims == 0)
        return 1;
    return (uint64_t)shape[0];
}
