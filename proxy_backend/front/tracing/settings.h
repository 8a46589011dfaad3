/* Trace settings: those of the server, and what models have of their own. */
#ifndef PYTRITON_FRONT_TRACING_SETTINGS_H
#define PYTRITON_FRONT_TRACING_SETTINGS_H

#include "base/names.h"
#include "tracing/tracing.h"

enum { LEVEL, RATE, COUNT, FREQUENCY, FIELDS };

/* Of the server, or a model. */
typedef struct {
    bool own[FIELDS];     /* a model's: its own, not the server's */
    int64_t
        field[FIELDS]; /* the level's bits; one in so many; how many are left, -1: no end; traces in one file, 0: all */
    uint64_t seen;
} TraceSetting;

typedef struct {
    bool opentelemetry;
    char *file; /* NULL: none */
    /* Of OpenTelemetry. */
    char *url;
    Text resource;
    int64_t batch, delay_ms, queue;
    /* Guarded by the caller's lock. */
    TraceSetting server;
    Names models; /* name -> TraceSetting */
} TraceSettings;

/* Read a trace-config: lines of "mode,setting=value" or "setting=value". */
bool trace_settings_parse(TraceSettings *settings, Slice config, Problem *problem);
void trace_settings_free(TraceSettings *settings);

/* Whether the next request for that model is traced, at which level; it counts. `forced`: its client traces it. */
unsigned trace_settings_sample(TraceSettings *settings, const char *model, bool forced, int64_t *frequency);
/* Whether anything at all is traced. */
bool trace_settings_any(const TraceSettings *settings);

bool trace_settings_write(const TraceSettings *settings, Slice model, Text *json, Problem *problem);
bool trace_settings_apply(
    TraceSettings *settings, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
