/* Request traces: selects which requests are traced, and writes the core's reports about them to a file (mode
 * "triton"), or sends them as spans to a collector (mode "opentelemetry"). Any thread.
 */
#ifndef PYTRITON_FRONTEND_TRACING_H
#define PYTRITON_FRONTEND_TRACING_H

#include "common/buffer.h"
#include "core/server.h"

typedef struct Tracing Tracing;
/* The trace of one request, and of those that it causes. */
typedef struct TraceRecord TraceRecord;

/* Apply the server's trace-config. The problem names the invalid setting. */
Tracing *tracing_new(Server *server, Problem *problem);
/* Called after the last call: writes pending traces. */
void tracing_free(Tracing *tracing);

/* The trace context that a client sends: headers "traceparent" and "tracestate", "" if absent. */
typedef struct {
    const char *parent, *state;
} TraceHeaders;
/* Create a record for a request that is about to start; NULL: it is not traced. `trace` then belongs to the core; the
 * caller has to end the record.
 */
TraceRecord *tracing_begin(
    Tracing *tracing, const char *model, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace);
/* Returns whether any request is traced; otherwise work that is only for traces can be skipped. */
bool tracing_any(const Tracing *tracing);
/* The steps of a protocol, as NVIDIA's frontends name them in traces. Receiving a request lasts from its first bytes
 * until it goes to the core, sending an answer from its first bytes until its memory is released.
 */
typedef struct {
    const char *receive_start, *receive_end, *send_start, *send_end;
} TraceSteps;

/* Record an event, such as "INFER_RESPONSE_COMPLETE", now or at the given time. */
void trace_event(TraceRecord *record, const char *name, uint64_t at_ns);
void trace_end(TraceRecord *record);
/* The core refused the request, and thereby the trace, unless it has already released that. */
void trace_refused(TraceRecord *record);

/* ── settings ───────────────────────────────────────────────────────────────────────────────────── */

/* See admin/trace_settings.h. `model` "": of the server; it exists. */
bool tracing_read(Tracing *tracing, Slice model, Buffer *json, Problem *problem);
typedef struct {
    Slice name;
    const Slice *values;
    size_t count;
} TraceChange;
bool tracing_change(Tracing *tracing, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
