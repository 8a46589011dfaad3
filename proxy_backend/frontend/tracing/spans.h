/* Converts traces to OpenTelemetry spans, in OTLP's JSON. */
#ifndef PYTRITON_FRONTEND_TRACING_SPANS_H
#define PYTRITON_FRONTEND_TRACING_SPANS_H

#include "tracing/trace_record.h"

/* Write {"resourceSpans": [...]} for a list of records. `resource` has the form "name=value,...". */
void spans_write(const TraceRecord *records, Slice resource, Buffer *json);

#endif
