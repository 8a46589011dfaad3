/* The record of one request's trace, including its child traces: the steps of an ensemble, and calls made by models. */
#ifndef PYTRITON_FRONTEND_TRACING_TRACE_RECORD_H
#define PYTRITON_FRONTEND_TRACING_TRACE_RECORD_H

#include "tracing/tracing.h"

enum { TRACE_ID = 16, SPAN_ID = 8, TRACE_STATE_BYTES = 512 };

/* The OpenTelemetry span of one of the core's traces, with a nested span for the model's work. */
typedef struct TraceSpan {
    uint64_t id, parent_id;
    unsigned char span[SPAN_ID], compute[SPAN_ID];
    uint64_t times[ACTIVITY_CUSTOM]; /* by activity; 0 if it has not happened */
    char *model, *request; /* NULL without memory */
    int64_t version;
} TraceSpan;

typedef struct {
    const char *name;
    uint64_t at_ns;
} TraceMoment;

enum { TRACE_MOMENTS = 8 };

struct TraceRecord {
    struct TraceRecord *next; /* next in the exporter's queue */
    Tracing *tracing;
    unsigned refs; /* references: one for the creator, one for each of the core's traces */
    bool opentelemetry;
    int64_t frequency;
    TRITONSERVER_InferenceTrace *core; /* the core's trace of the request itself; NULL after its release */
    pthread_mutex_t lock; /* guards the fields below */
    Buffer entries; /* mode triton: entries for the file */
    uint64_t root_id;
    /* Mode opentelemetry: */
    unsigned char trace[TRACE_ID], parent[SPAN_ID], root[SPAN_ID];
    bool has_parent;
    char state[TRACE_STATE_BYTES + 1];
    uint64_t begun_ns, ended_ns;
    TraceSpan *spans;
    size_t span_count;
    TraceMoment moments[TRACE_MOMENTS]; /* events of the frontend itself */
    size_t moment_count;
};

/* Returns NULL without memory, or if the core provides no trace. */
TraceRecord *trace_record_new(
    Tracing *tracing, bool opentelemetry, unsigned level, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace);
void trace_record_free(TraceRecord *record);
/* Pass on a complete record. Defined in tracing.c. */
void tracing_take(Tracing *tracing, TraceRecord *record);

#endif
