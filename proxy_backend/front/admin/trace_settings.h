/* The trace settings of the protocols. Cheap enough for a loop. */
#ifndef PYTRITON_FRONT_TRACE_SETTINGS_H
#define PYTRITON_FRONT_TRACE_SETTINGS_H

#include "base/text.h"
#include "tracing/tracing.h"

/* {"trace_level": [...], "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode", ...}, each other value a string. `model` "": of the server. */
bool trace_settings_read(Tracing *tracing, Server *server, Slice model, Text *json, Problem *problem);

/* One setting that is to be changed. Several values: of trace_level only. Without any: from now on it is the server's again, or the default. */
typedef struct {
    Slice name;
    const Slice *values;
    size_t count;
} TraceChange;
/* All or nothing. */
bool trace_settings_change(
    Tracing *tracing, Server *server, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
