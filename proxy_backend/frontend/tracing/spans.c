#include "tracing/spans.h"

#include "common/clock.h"
#include "common/json_writer.h"

#include <inttypes.h>

enum { KIND_SERVER = 2 };

/* Returns the difference between the system clock and the clock of the activities, which does not change when the
 * system clock is set.
 */
static uint64_t day_offset(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec - clock_ns();
}

static void put_id(Buffer *json, const char *name, const unsigned char *id, size_t size)
{
    buffer_format(json, "\"%s\":\"", name);
    for (size_t i = 0; i < size; i++)
        buffer_format(json, "%02x", id[i]);
    buffer_put_string(json, "\",");
}

static void put_string_attribute(Buffer *json, const char *separator, Slice name, Slice value)
{
    buffer_format(json, "%s{\"key\":", separator);
    json_put_sanitized(json, name);
    buffer_put_string(json, ",\"value\":{\"stringValue\":");
    json_put_sanitized(json, value);
    buffer_put_string(json, "}}");
}

static void put_integer_attribute(Buffer *json, const char *name, int64_t value)
{
    buffer_format(json, ",{\"key\":\"%s\",\"value\":{\"intValue\":\"%" PRId64 "\"}}", name, value);
}

static void put_head(
    Buffer *json, const TraceRecord *record, const unsigned char *span, const unsigned char *parent, Slice name)
{
    buffer_put_string(json, "{");
    put_id(json, "traceId", record->trace, TRACE_ID);
    put_id(json, "spanId", span, SPAN_ID);
    if (parent)
        put_id(json, "parentSpanId", parent, SPAN_ID);
    if (*record->state) {
        buffer_put_string(json, "\"traceState\":");
        json_put_sanitized(json, slice_of(record->state));
        buffer_put_string(json, ",");
    }
    buffer_format(json, "\"kind\":%d,\"name\":", KIND_SERVER);
    json_put_sanitized(json, name);
}

static void put_times(Buffer *json, uint64_t start_ns, uint64_t end_ns, uint64_t offset)
{
    buffer_format(json, ",\"startTimeUnixNano\":\"%" PRIu64 "\",\"endTimeUnixNano\":\"%" PRIu64 "\"", start_ns + offset,
        end_ns + offset);
}

static void put_event(Buffer *json, bool *more, const char *name, uint64_t at_ns, uint64_t offset)
{
    buffer_format(json, "%s{\"name\":\"%s\",\"timeUnixNano\":\"%" PRIu64 "\"}", *more ? "," : "", name, at_ns + offset);
    *more = true;
}

/* Complete the JSON of a span with those of the given activities that have happened, as events. */
static void put_activities(Buffer *json, const TraceSpan *span, const int *which, size_t count, uint64_t offset)
{
    bool more = false;
    buffer_put_string(json, ",\"events\":[");
    for (size_t i = 0; i < count; i++)
        if (span->times[which[i]])
            put_event(json, &more, triton.InferenceTraceActivityString(which[i]), span->times[which[i]], offset);
    buffer_put_string(json, "]}");
}

static const unsigned char *parent_of(const TraceRecord *record, const TraceSpan *span)
{
    for (size_t i = 0; i < record->span_count; i++)
        if (record->spans[i].id == span->parent_id)
            return record->spans[i].span;
    return record->root;
}

static void put_span(Buffer *json, const TraceRecord *record, const TraceSpan *span, uint64_t offset)
{
    static const int request[] = {ACTIVITY_REQUEST_START, ACTIVITY_QUEUE_START, ACTIVITY_REQUEST_END};
    static const int compute[] = {
        ACTIVITY_COMPUTE_START, ACTIVITY_COMPUTE_INPUT_END, ACTIVITY_COMPUTE_OUTPUT_START, ACTIVITY_COMPUTE_END};
    uint64_t start = span->times[ACTIVITY_REQUEST_START], end = span->times[ACTIVITY_REQUEST_END];
    Slice model = slice_of(span->model ? span->model : "");
    put_head(json, record, span->span, parent_of(record, span), model);
    put_times(json, start ? start : record->begun_ns, end ? end : record->ended_ns, offset);
    buffer_put_string(json, ",\"attributes\":[");
    put_string_attribute(json, "", SLICE("triton.model_name"), model);
    put_integer_attribute(json, "triton.model_version", span->version);
    put_integer_attribute(json, "triton.trace_id", (int64_t)span->id);
    put_integer_attribute(json, "triton.trace_parent_id", (int64_t)span->parent_id);
    if (span->request && *span->request)
        put_string_attribute(json, ",", SLICE("triton.request_id"), slice_of(span->request));
    buffer_put_string(json, "]");
    put_activities(json, span, request, sizeof request / sizeof *request, offset);
    if (span->times[ACTIVITY_COMPUTE_START] == 0)
        return;
    buffer_put_string(json, ",");
    put_head(json, record, span->compute, span->span, SLICE("compute"));
    uint64_t done = span->times[ACTIVITY_COMPUTE_END];
    put_times(json, span->times[ACTIVITY_COMPUTE_START], done ? done : record->ended_ns, offset);
    put_activities(json, span, compute, sizeof compute / sizeof *compute, offset);
}

static void put_record(Buffer *json, const TraceRecord *record, uint64_t offset)
{
    put_head(json, record, record->root, record->has_parent ? record->parent : NULL, SLICE("InferRequest"));
    put_times(json, record->begun_ns, record->ended_ns, offset);
    bool more = false;
    buffer_put_string(json, ",\"events\":[");
    for (size_t i = 0; i < record->moment_count; i++)
        put_event(json, &more, record->moments[i].name, record->moments[i].at_ns, offset);
    buffer_put_string(json, "]}");
    for (size_t i = 0; i < record->span_count; i++) {
        buffer_put_string(json, ",");
        put_span(json, record, &record->spans[i], offset);
    }
}

void spans_write(const TraceRecord *records, Slice resource, Buffer *json)
{
    uint64_t offset = day_offset();
    buffer_put_string(json, "{\"resourceSpans\":[{\"resource\":{\"attributes\":[");
    put_string_attribute(json, "", SLICE("telemetry.sdk.name"), SLICE("pytriton-frontend"));
    Slice one;
    while (slice_split(&resource, ',', &one)) {
        Slice name;
        if (slice_split(&one, '=', &name) && one.start && name.size)
            put_string_attribute(json, ",", name, one);
    }
    buffer_put_string(json, "]},\"scopeSpans\":[{\"scope\":{\"name\":\"triton-server\"},\"spans\":[");
    for (const TraceRecord *record = records; record; record = record->next) {
        put_record(json, record, offset);
        buffer_put_string(json, record->next ? "," : "");
    }
    buffer_put_string(json, "]}]}]}");
}
