/* Sends spans to a collector of OpenTelemetry's (OTLP over HTTP, as JSON), in a thread of its own. */
#ifndef PYTRITON_FRONT_OTLP_H
#define PYTRITON_FRONT_OTLP_H

#include "tracing/trace_record.h"
#include "tracing/settings.h"

typedef struct Otlp Otlp;

/* The settings stay as they are. NULL: the URL cannot be used, or there is no memory. */
Otlp *otlp_new(const TraceSettings *settings, Problem *problem);
/* Takes the record over. Where too many wait already, it is lost. Any thread. */
void otlp_put(Otlp *otlp, TraceRecord *record);
/* Send what waits. */
void otlp_free(Otlp *otlp);

#endif
