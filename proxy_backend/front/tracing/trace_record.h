/* What the core tells of one traced request, and of those that it causes: an ensemble's steps, a model's own calls. */
#ifndef PYTRITON_FRONT_TRACE_RECORD_H
#define PYTRITON_FRONT_TRACE_RECORD_H

#include "tracing/tracing.h"

enum { TRACE_ID = 16, SPAN_ID = 8, TRACE_STATE_BYTES = 512, TRACE_CONTEXT = 1024 };

/* What one trace of the core's is in OpenTelemetry: a span, with another one in it for the model's work. */
typedef struct TraceSpan {
    uint64_t id, parent_id;
    unsigned char span[SPAN_ID], compute[SPAN_ID];
    uint64_t times[ACTIVITY_CUSTOM]; /* by activity; 0: it has not happened */
    char *model, *request; /* NULL: there was no memory */
    int64_t version;
} TraceSpan;

typedef struct {
    const char *name;
    uint64_t at_ns;
} TraceMoment;

enum { TRACE_MOMENTS = 8 };

struct TraceRecord {
    struct TraceRecord *next; /* of the exporter's queue */
    Tracing *tracing;
    unsigned refs; /* one of whoever began it, one of each trace of the core's */
    bool opentelemetry;
    int64_t frequency;
    TRITONSERVER_InferenceTrace *core; /* the core's, of the request itself; NULL: the core has given it back */
    pthread_mutex_t lock; /* guards the rest */
    Text entries; /* mode triton: what the file gets */
    uint64_t root_id;
    /* OpenTelemetry: */
    unsigned char trace[TRACE_ID], parent[SPAN_ID], root[SPAN_ID];
    bool has_parent;
    char state[TRACE_STATE_BYTES + 1];
    uint64_t begun_ns, ended_ns;
    TraceSpan *spans;
    size_t span_count;
    TraceMoment moments[TRACE_MOMENTS]; /* the front's own */
    size_t moment_count;
};

/* NULL: there is no memory, or no trace can be had of the core. */
TraceRecord *record_new(
    Tracing *tracing, bool opentelemetry, unsigned level, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace);
void record_free(TraceRecord *record);
/* tracing.c's: nothing more will come; the record is given away. */
void tracing_take(Tracing *tracing, TraceRecord *record);

#endif
