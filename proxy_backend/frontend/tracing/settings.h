/* Trace settings of the server, and of models that override them. */
#ifndef PYTRITON_FRONTEND_TRACING_SETTINGS_H
#define PYTRITON_FRONTEND_TRACING_SETTINGS_H

#include "base/name_table.h"
#include "tracing/tracing.h"

enum { LEVEL, RATE, COUNT, FREQUENCY, FIELDS };

/* The settings of the server or of a model. */
typedef struct {
    bool own[FIELDS];     /* for a model: the field is set for it, instead of inherited */
    /* level bits; trace one in this many requests; remaining number (-1: unlimited); traces per file (0: all) */
    int64_t field[FIELDS];
    uint64_t seen;
} TraceSetting;

typedef struct {
    bool opentelemetry;
    char *file; /* NULL if there is none */
    /* For OpenTelemetry. */
    char *url;
    Buffer resource;
    int64_t batch, delay_ms, queue;
    /* Guarded by a lock of the caller. */
    TraceSetting server;
    NameTable models; /* by name: a TraceSetting */
} TraceSettings;

/* Parse a trace-config: lines of "mode,setting=value" or "setting=value". */
bool trace_settings_parse(TraceSettings *settings, Slice config, Problem *problem);
void trace_settings_free(TraceSettings *settings);

/* Returns the level at which the next request for a model is traced, or 0, and counts the request. With `forced`, it
 * is traced because its client traces it.
 */
unsigned trace_settings_sample(TraceSettings *settings, const char *model, bool forced, int64_t *frequency);
/* Returns whether any request can be traced. */
bool trace_settings_any(const TraceSettings *settings);

bool trace_settings_write(const TraceSettings *settings, Slice model, Buffer *json, Problem *problem);
bool trace_settings_apply(
    TraceSettings *settings, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
