/* Traces of requests. Selects the requests to be traced, and writes what the core reports about them to a file (mode
 * "triton"), or sends it as spans to a collector (mode "opentelemetry"). Any thread.
 */
#ifndef PYTRITON_FRONTEND_TRACING_H
#define PYTRITON_FRONTEND_TRACING_H

#include "common/buffer.h"
#include "core/server.h"

typedef struct Tracing Tracing;
/* The trace of one request, including its child traces. */
typedef struct TraceRecord TraceRecord;

/* Apply the server's trace-config. Returns NULL with a problem that names the invalid setting. */
Tracing *tracing_new(Server *server, Problem *problem);
/* Write pending traces, and free. Must be called after the last call. */
void tracing_free(Tracing *tracing);

/* The trace context from a client: the headers "traceparent" and "tracestate", or "" if absent. */
typedef struct {
    const char *parent, *state;
} TraceHeaders;
/* Begin the trace of a request that is about to start. Returns NULL if the request is not traced. `trace` has to be
 * passed to the core, and the caller has to call trace_end.
 */
TraceRecord *tracing_begin(
    Tracing *tracing, const char *model, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace);
/* Returns whether any request can be traced. Otherwise, work that is only for traces can be skipped. */
bool tracing_any(const Tracing *tracing);
/* The names of a protocol's steps in traces, as in NVIDIA's frontends. Receiving a request lasts from its first bytes
 * until it is passed to the core, sending an answer from its first bytes until its memory is released.
 */
typedef struct {
    const char *receive_start, *receive_end, *send_start, *send_end;
} TraceSteps;

/* Record an event at the given time, such as "INFER_RESPONSE_COMPLETE". */
void trace_event(TraceRecord *record, const char *name, uint64_t at_ns);
void trace_end(TraceRecord *record);
/* The core has refused the request and thereby the trace, unless it has already released it. */
void trace_refused(TraceRecord *record);

/* ── settings ───────────────────────────────────────────────────────────────────────────────────── */

/* See admin/trace_settings.h. An empty `model` stands for the server. A named model must exist. */
bool tracing_read(Tracing *tracing, Slice model, Buffer *json, Problem *problem);
typedef struct {
    Slice name;
    const Slice *values;
    size_t count;
} TraceChange;
bool tracing_change(Tracing *tracing, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
