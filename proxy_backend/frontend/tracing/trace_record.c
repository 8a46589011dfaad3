#include "tracing/trace_record.h"

#include "common/clock.h"
#include "base/log.h"
#include "json/numbers.h"
#include "common/json_writer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>

/* Limits of a trace: number of spans, and size of a tensor. */
enum { SPANS = 1024, TENSOR_BYTES = 16 << 20 };

/* ── identities ─────────────────────────────────────────────────────────────────────────────────── */

static void make_id(unsigned char *id, size_t size)
{
    if (getrandom(id, size, 0) != (ssize_t)size)
        memset(id, 1, size);
}

static bool read_hex(const char *text, unsigned char *bytes, size_t size)
{
    bool other_than_zero = false;
    for (size_t i = 0; i < size; i++) {
        unsigned value = 0;
        for (int half = 0; half < 2; half++) {
            char digit = text[2 * i + (size_t)half];
            if (digit >= '0' && digit <= '9')
                value = value * 16 + (unsigned)(digit - '0');
            else if (digit >= 'a' && digit <= 'f')
                value = value * 16 + (unsigned)(digit - 'a' + 10);
            else
                return false;
        }
        bytes[i] = (unsigned char)value;
        other_than_zero = other_than_zero || value;
    }
    return other_than_zero;
}

static void put_hex(Buffer *text, const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        buffer_format(text, "%02x", bytes[i]);
}

/* Parse a traceparent, "00-TRACE-SPAN-FLAGS" (W3C Trace Context). */
static bool read_parent(TraceRecord *record, const char *parent)
{
    enum { TRACE_AT = 3, SPAN_AT = 36, FLAGS_AT = 53, SIZE = 55 };
    size_t size = strlen(parent);
    if (size < SIZE || (size > SIZE && parent[SIZE] != '-') || (size > SIZE && strncmp(parent, "00", 2) == 0) ||
        strncmp(parent, "ff", 2) == 0 || parent[TRACE_AT - 1] != '-' || parent[SPAN_AT - 1] != '-' ||
        parent[FLAGS_AT - 1] != '-')
        return false;
    return read_hex(parent + TRACE_AT, record->trace, TRACE_ID) && read_hex(parent + SPAN_AT, record->parent, SPAN_ID);
}

/* ── the core's callbacks ───────────────────────────────────────────────────────────────────────── */

static void unref(TraceRecord *record)
{
    if (__atomic_sub_fetch(&record->refs, 1, __ATOMIC_ACQ_REL) == 0)
        tracing_take(record->tracing, record);
}

static void put_entry(TraceRecord *record, uint64_t id)
{
    buffer_format(&record->entries, "%s{\"id\":%" PRIu64, record->entries.size ? "," : "", id);
}

static void put_time(TraceRecord *record, uint64_t id, const char *name, uint64_t at_ns)
{
    put_entry(record, id);
    buffer_put_string(&record->entries, ",\"timestamps\":[{\"name\":");
    json_put_sanitized(&record->entries, slice_of(name));
    buffer_format(&record->entries, ",\"ns\":%" PRIu64 "}]}", at_ns);
}

/* Record the model of a trace when the trace begins. */
static void put_beginning(TraceRecord *record, TRITONSERVER_InferenceTrace *trace, uint64_t id)
{
    const char *model = "", *request = "";
    int64_t version = -1;
    uint64_t parent = 0;
    api_ignore(triton.InferenceTraceModelName(trace, &model), "reading a trace");
    api_ignore(triton.InferenceTraceModelVersion(trace, &version), "reading a trace");
    api_ignore(triton.InferenceTraceRequestId(trace, &request), "reading a trace");
    api_ignore(triton.InferenceTraceParentId(trace, &parent), "reading a trace");
    put_entry(record, id);
    buffer_put_string(&record->entries, ",\"model_name\":");
    json_put_sanitized(&record->entries, slice_of(model));
    buffer_format(&record->entries, ",\"model_version\":%" PRId64, version);
    if (request && *request) {
        buffer_put_string(&record->entries, ",\"request_id\":");
        json_put_sanitized(&record->entries, slice_of(request));
    }
    if (parent)
        buffer_format(&record->entries, ",\"parent_id\":%" PRIu64, parent);
    buffer_put_string(&record->entries, "}");
}

/* Returns the span of one of the core's traces, creating it if needed. NULL if there are too many, or without memory.
 */
static TraceSpan *span_of(TraceRecord *record, uint64_t id)
{
    for (size_t i = 0; i < record->span_count; i++)
        if (record->spans[i].id == id)
            return &record->spans[i];
    if (record->span_count == SPANS)
        return NULL;
    TraceSpan *grown = realloc(record->spans, (record->span_count + 1) * sizeof *grown);
    if (grown == NULL)
        return NULL;
    record->spans = grown;
    TraceSpan *span = &grown[record->span_count++];
    *span = (TraceSpan){.id = id};
    make_id(span->span, SPAN_ID);
    make_id(span->compute, SPAN_ID);
    return span;
}

/* Make the current span the parent of spans of the model, and of the models that it calls. */
static void set_context(TraceRecord *record, TRITONSERVER_InferenceTrace *trace, const TraceSpan *span)
{
    Buffer context = {0};
    buffer_put_string(&context, "{\"traceparent\":\"00-");
    put_hex(&context, record->trace, TRACE_ID);
    buffer_put_string(&context, "-");
    put_hex(&context, span->span, SPAN_ID);
    buffer_put_string(&context, "-01\"");
    if (*record->state) {
        buffer_put_string(&context, ",\"tracestate\":");
        json_put_sanitized(&context, slice_of(record->state));
    }
    buffer_put_string(&context, "}");
    const char *text = buffer_string(&context);
    if (text)
        api_ignore(triton.InferenceTraceSetContext(trace, text), "setting a trace's context");
    buffer_free(&context);
}

static void span_activity(
    TraceRecord *record, TRITONSERVER_InferenceTrace *trace, uint64_t id, int activity, uint64_t at_ns)
{
    TraceSpan *span = activity < ACTIVITY_CUSTOM ? span_of(record, id) : NULL;
    if (span == NULL)
        return;
    span->times[activity] = at_ns;
    if (activity != ACTIVITY_REQUEST_START)
        return;
    const char *model = "", *request = "";
    api_ignore(triton.InferenceTraceModelName(trace, &model), "reading a trace");
    api_ignore(triton.InferenceTraceModelVersion(trace, &span->version), "reading a trace");
    api_ignore(triton.InferenceTraceRequestId(trace, &request), "reading a trace");
    api_ignore(triton.InferenceTraceParentId(trace, &span->parent_id), "reading a trace");
    span->model = slice_copy(slice_of(model ? model : ""));
    span->request = slice_copy(slice_of(request ? request : ""));
    set_context(record, trace, span);
}

/* The core's callback for activities, in any thread. It is also called for child traces, whose first activity is their
 * start.
 */
static void on_activity(TRITONSERVER_InferenceTrace *trace, int what, uint64_t at_ns, void *userp)
{
    TraceRecord *record = userp;
    uint64_t id = 0;
    api_ignore(triton.InferenceTraceId(trace, &id), "reading a trace");
    if (what == ACTIVITY_REQUEST_START && id != record->root_id)
        __atomic_add_fetch(&record->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_lock(&record->lock);
    if (record->opentelemetry) {
        span_activity(record, trace, id, what, at_ns);
    } else {
        if (what == ACTIVITY_REQUEST_START)
            put_beginning(record, trace, id);
        put_time(record, id, triton.InferenceTraceActivityString(what), at_ns);
    }
    pthread_mutex_unlock(&record->lock);
}

#define PUT_VALUES(c_type, put)                                                                                        \
    for (size_t at = 0; at + sizeof(c_type) <= size; at += sizeof(c_type)) {                                           \
        c_type value;                                                                                                  \
        memcpy(&value, (const char *)bytes + at, sizeof value);                                                        \
        buffer_put_string(text, at ? "," : "");                                                                        \
        put;                                                                                                           \
    }                                                                                                                  \
    break;

/* Write the values of a tensor, separated by commas. Writes nothing for types without a text form. */
static void put_values(Buffer *text, int datatype, const void *bytes, size_t size)
{
    switch (datatype) {
    case TYPE_BOOL:
    case TYPE_UINT8:
        PUT_VALUES(uint8_t, buffer_put_unsigned(text, value))
    case TYPE_UINT16:
        PUT_VALUES(uint16_t, buffer_put_unsigned(text, value))
    case TYPE_UINT32:
        PUT_VALUES(uint32_t, buffer_put_unsigned(text, value))
    case TYPE_UINT64:
        PUT_VALUES(uint64_t, buffer_put_unsigned(text, value))
    case TYPE_INT8:
        PUT_VALUES(int8_t, buffer_put_signed(text, value))
    case TYPE_INT16:
        PUT_VALUES(int16_t, buffer_put_signed(text, value))
    case TYPE_INT32:
        PUT_VALUES(int32_t, buffer_put_signed(text, value))
    case TYPE_INT64:
        PUT_VALUES(int64_t, buffer_put_signed(text, value))
    case TYPE_FP32:
        PUT_VALUES(float, buffer_format(text, "%.6g", (double)value))
    case TYPE_FP64:
        PUT_VALUES(double, buffer_format(text, "%.6g", value))
    default:
        break;
    }
}

/* The core's callback for tensors. */
static void on_tensor(TRITONSERVER_InferenceTrace *trace, int what, const char *name, int datatype, const void *bytes,
    size_t size, const int64_t *shape, uint64_t dims, int memory_type, int64_t memory_type_id, void *userp)
{
    (void)memory_type_id;
    TraceRecord *record = userp;
    if (record->opentelemetry)
        return;
    uint64_t id = 0;
    api_ignore(triton.InferenceTraceId(trace, &id), "reading a trace");
    Buffer values = {0};
    if (memory_type != MEMORY_GPU && size <= TENSOR_BYTES)
        put_values(&values, datatype, bytes, size);
    pthread_mutex_lock(&record->lock);
    Buffer *entries = &record->entries;
    put_entry(record, id);
    buffer_format(entries, ",\"activity\":\"%s\",\"tensor\":{\"name\":", triton.InferenceTraceActivityString(what));
    json_put_sanitized(entries, slice_of(name));
    buffer_put_string(entries, ",\"data\":\"");
    buffer_put_slice(entries, buffer_slice(&values));
    buffer_put_string(entries, "\",\"shape\":\"");
    for (uint64_t i = 0; i < dims; i++)
        buffer_format(entries, "%s%" PRId64, i ? "," : "", shape[i]);
    buffer_format(entries, "\",\"dtype\":\"%s\"}}", datatype_name((DataType)datatype));
    pthread_mutex_unlock(&record->lock);
    buffer_free(&values);
}

/* The core's callback when it has released a trace. */
static void on_released(TRITONSERVER_InferenceTrace *trace, void *userp)
{
    TraceRecord *record = userp;
    TRITONSERVER_InferenceTrace *root = trace;
    __atomic_compare_exchange_n(&record->core, &root, NULL, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    api_ignore(triton.InferenceTraceDelete(trace), "deleting a trace");
    unref(record);
}

void trace_refused(TraceRecord *record)
{
    TRITONSERVER_InferenceTrace *trace = __atomic_load_n(&record->core, __ATOMIC_ACQUIRE);
    if (trace)
        on_released(trace, record);
}

void trace_event(TraceRecord *record, const char *name, uint64_t at_ns)
{
    pthread_mutex_lock(&record->lock);
    if (at_ns < record->begun_ns)
        record->begun_ns = at_ns;
    if (!record->opentelemetry)
        put_time(record, record->root_id, name, at_ns);
    else if (record->moment_count < TRACE_MOMENTS)
        record->moments[record->moment_count++] = (TraceMoment){name, at_ns};
    pthread_mutex_unlock(&record->lock);
}

void trace_end(TraceRecord *record)
{
    unref(record);
}

TraceRecord *trace_record_new(
    Tracing *tracing, bool opentelemetry, unsigned level, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace)
{
    enum { WHOSE = 2 };
    TraceRecord *record = calloc(1, sizeof *record);
    if (record == NULL || pthread_mutex_init(&record->lock, NULL) != 0) {
        free(record);
        return NULL;
    }
    record->tracing = tracing;
    record->opentelemetry = opentelemetry;
    record->refs = WHOSE;
    record->begun_ns = clock_ns();
    if (opentelemetry) {
        record->has_parent = read_parent(record, headers.parent);
        if (!record->has_parent)
            make_id(record->trace, TRACE_ID);
        else if (strlen(headers.state) <= TRACE_STATE_BYTES)
            memcpy(record->state, headers.state, strlen(headers.state) + 1);
        make_id(record->root, SPAN_ID);
    }
    Problem problem = {0};
    if (!api_succeeded(
            triton.InferenceTraceTensorNew(trace, (int)level, 0, on_activity, on_tensor, on_released, record),
            &problem)) {
        log_error("cannot trace a request: %s", problem_text(&problem));
        problem_clear(&problem);
        trace_record_free(record);
        return NULL;
    }
    api_ignore(triton.InferenceTraceId(*trace, &record->root_id), "reading a trace");
    record->core = *trace;
    return record;
}

void trace_record_free(TraceRecord *record)
{
    for (size_t i = 0; i < record->span_count; i++) {
        free(record->spans[i].model);
        free(record->spans[i].request);
    }
    free(record->spans);
    buffer_free(&record->entries);
    pthread_mutex_destroy(&record->lock);
    free(record);
}
