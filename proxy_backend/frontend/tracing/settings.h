/* Trace settings of the server, and those that models override. */
#ifndef PYTRITON_FRONTEND_TRACING_SETTINGS_H
#define PYTRITON_FRONTEND_TRACING_SETTINGS_H

#include "base/name_table.h"
#include "tracing/tracing.h"

enum { LEVEL, RATE, COUNT, FREQUENCY, FIELDS };

/* Of the server, or a model. */
typedef struct {
    bool own[FIELDS];     /* a model's: set for it, not inherited */
    int64_t field[FIELDS]; /* level bits; one in this many; remaining, -1: unlimited; per file, 0: all */
    uint64_t seen;
} TraceSetting;

typedef struct {
    bool opentelemetry;
    char *file; /* NULL: none */
    /* OpenTelemetry's. */
    char *url;
    Buffer resource;
    int64_t batch, delay_ms, queue;
    /* Guarded by the caller's lock. */
    TraceSetting server;
    NameTable models; /* name -> TraceSetting */
} TraceSettings;

/* Parse a trace-config: lines of "mode,setting=value" or "setting=value". */
bool trace_settings_parse(TraceSettings *settings, Slice config, Problem *problem);
void trace_settings_free(TraceSettings *settings);

/* Returns whether, and at which level, the next request for that model is traced, and counts it. `forced`: its client
 * traces it.
 */
unsigned trace_settings_sample(TraceSettings *settings, const char *model, bool forced, int64_t *frequency);
/* Returns whether anything is traced. */
bool trace_settings_any(const TraceSettings *settings);

bool trace_settings_write(const TraceSettings *settings, Slice model, Buffer *json, Problem *problem);
bool trace_settings_apply(
    TraceSettings *settings, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
