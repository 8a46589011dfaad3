/* Sends spans to an OpenTelemetry collector (OTLP over HTTP, as JSON), in a separate thread. */
#ifndef PYTRITON_FRONTEND_TRACING_OTLP_H
#define PYTRITON_FRONTEND_TRACING_OTLP_H

#include "tracing/trace_record.h"
#include "tracing/settings.h"

typedef struct Otlp Otlp;

/* The settings must stay. Returns NULL if the URL is unusable, or without memory. */
Otlp *otlp_new(const TraceSettings *settings, Problem *problem);
/* Takes the record over. It is dropped if too many wait already. Any thread. */
void otlp_put(Otlp *otlp, TraceRecord *record);
/* Send the queued records, and free. */
void otlp_free(Otlp *otlp);

#endif
