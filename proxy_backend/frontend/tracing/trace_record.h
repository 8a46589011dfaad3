/* The trace of one request, and of those that it causes: an ensemble's steps, a model's own calls. */
#ifndef PYTRITON_FRONTEND_TRACING_TRACE_RECORD_H
#define PYTRITON_FRONTEND_TRACING_TRACE_RECORD_H

#include "tracing/tracing.h"

enum { TRACE_ID = 16, SPAN_ID = 8, TRACE_STATE_BYTES = 512, TRACE_CONTEXT = 1024 };

/* An OpenTelemetry span for one of the core's traces, with a nested one for the model's work. */
typedef struct TraceSpan {
    uint64_t id, parent_id;
    unsigned char span[SPAN_ID], compute[SPAN_ID];
    uint64_t times[ACTIVITY_CUSTOM]; /* by activity; 0: it has not happened */
    char *model, *request; /* NULL: no memory */
    int64_t version;
} TraceSpan;

typedef struct {
    const char *name;
    uint64_t at_ns;
} TraceMoment;

enum { TRACE_MOMENTS = 8 };

struct TraceRecord {
    struct TraceRecord *next; /* in the exporter's queue */
    Tracing *tracing;
    unsigned refs; /* one for the creator, one for each of the core's traces */
    bool opentelemetry;
    int64_t frequency;
    TRITONSERVER_InferenceTrace *core; /* the core's trace of the request itself; NULL: the core has released it */
    pthread_mutex_t lock; /* guards the rest */
    Buffer entries; /* mode triton: the file's entries */
    uint64_t root_id;
    /* OpenTelemetry: */
    unsigned char trace[TRACE_ID], parent[SPAN_ID], root[SPAN_ID];
    bool has_parent;
    char state[TRACE_STATE_BYTES + 1];
    uint64_t begun_ns, ended_ns;
    TraceSpan *spans;
    size_t span_count;
    TraceMoment moments[TRACE_MOMENTS]; /* the frontend's own */
    size_t moment_count;
};

/* NULL without memory, or if the core provides no trace. */
TraceRecord *trace_record_new(
    Tracing *tracing, bool opentelemetry, unsigned level, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace);
void trace_record_free(TraceRecord *record);
/* tracing.c's: the record is complete and is passed on. */
void tracing_take(Tracing *tracing, TraceRecord *record);

#endif
