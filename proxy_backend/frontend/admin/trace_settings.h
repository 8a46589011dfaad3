/* The protocols' trace settings. Fast enough for a loop. */
#ifndef PYTRITON_FRONTEND_ADMIN_TRACE_SETTINGS_H
#define PYTRITON_FRONTEND_ADMIN_TRACE_SETTINGS_H

#include "common/buffer.h"
#include "tracing/tracing.h"

/* {"trace_level": [...], "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode", ...}; all other
 * values are strings. `model` "": the server's.
 */
bool trace_settings_read(Tracing *tracing, Server *server, Slice model, Buffer *json, Problem *problem);

/* All or nothing. A TraceChange has several values for trace_level only; without any, a model's setting is reset to
 * the server's, and the server's to the default.
 */
bool trace_settings_change(
    Tracing *tracing, Server *server, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
