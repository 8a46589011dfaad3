/* Traces of requests: which are traced, and where what the core tells of them goes: to a file (mode "triton"), or as spans to a
 * collector (mode "opentelemetry"). Any thread. */
#ifndef PYTRITON_FRONT_TRACING_H
#define PYTRITON_FRONT_TRACING_H

#include "base/text.h"
#include "core/server.h"

typedef struct Tracing Tracing;
/* The trace of one request, and of those that it causes. */
typedef struct TraceRecord TraceRecord;

/* With the server's trace-config. The problem says which of its settings is wrong. */
Tracing *tracing_new(Server *server, Problem *problem);
/* After the last call: what has not been written is written. */
void tracing_free(Tracing *tracing);

/* What a client says of what its request is a part of: headers "traceparent" and "tracestate", "" without. */
typedef struct {
    const char *parent, *state;
} TraceHeaders;
/* A record for a request that is about to start; NULL: it is not traced. `trace` is the core's then, the record whoever began it has to end. */
TraceRecord *tracing_begin(
    Tracing *tracing, const char *model, TraceHeaders headers, TRITONSERVER_InferenceTrace **trace);
/* Whether any request is traced: what is only for traces can be left out otherwise. */
bool tracing_any(const Tracing *tracing);
/* The steps of a protocol, as NVIDIA's frontends call them in traces. A request is received from when its first bytes are there until it
 * goes to the core, and an answer is sent from when its first bytes go until its memory is free again. */
typedef struct {
    const char *receive_start, *receive_end, *send_start, *send_end;
} TraceSteps;

/* Something has happened, such as "INFER_RESPONSE_COMPLETE", now or then. */
void trace_event(TraceRecord *record, const char *name, uint64_t at_ns);
void trace_end(TraceRecord *record);
/* The core has not taken the request: so it has not taken the trace either, unless it has given that back by now. */
void trace_refused(TraceRecord *record);

/* ── settings ───────────────────────────────────────────────────────────────────────────────────── */

/* See admin/trace_settings.h. `model` "": of the server; it exists. */
bool tracing_read(Tracing *tracing, Slice model, Text *json, Problem *problem);
typedef struct {
    Slice name;
    const Slice *values;
    size_t count;
} TraceChange;
bool tracing_change(Tracing *tracing, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
