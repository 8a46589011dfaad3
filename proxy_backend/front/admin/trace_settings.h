/* The trace settings of the protocols. Cheap enough for a loop. */
#ifndef PYTRITON_FRONT_TRACE_SETTINGS_H
#define PYTRITON_FRONT_TRACE_SETTINGS_H

#include "base/text.h"
#include "tracing/tracing.h"

/* {"trace_level": [...], "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode", ...}, each other value
 * a string. `model` "": of the server. */
bool trace_settings_read(Tracing *tracing, Server *server, Slice model, Text *json, Problem *problem);

/* All or nothing. A TraceChange has several values for trace_level only; without any, the setting is the server's again, or
 * of the server the default. */
bool trace_settings_change(
    Tracing *tracing, Server *server, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
