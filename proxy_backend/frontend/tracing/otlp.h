/* Sends spans to an OpenTelemetry collector (OTLP over HTTP, as JSON), in a separate thread. */
#ifndef PYTRITON_FRONTEND_TRACING_OTLP_H
#define PYTRITON_FRONTEND_TRACING_OTLP_H

#include "tracing/trace_record.h"
#include "tracing/settings.h"

typedef struct Otlp Otlp;

/* Create an exporter. The settings must outlive it. Returns NULL with a problem if the URL cannot be used, or without
 * memory.
 */
Otlp *otlp_new(const TraceSettings *settings, Problem *problem);
/* Queue a record, and take ownership of it. It is dropped if the queue is full. Any thread. */
void otlp_put(Otlp *otlp, TraceRecord *record);
/* Send the queued records, and free the exporter. */
void otlp_free(Otlp *otlp);

#endif
