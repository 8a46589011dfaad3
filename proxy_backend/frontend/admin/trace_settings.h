/* The trace settings of KServe's protocols. Fast enough for an event loop. */
#ifndef PYTRITON_FRONTEND_ADMIN_TRACE_SETTINGS_H
#define PYTRITON_FRONTEND_ADMIN_TRACE_SETTINGS_H

#include "common/buffer.h"
#include "tracing/tracing.h"

/* Append {"trace_level": [...], "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode", ...}, in
 * which all other values are strings. An empty `model` means the server's settings.
 */
bool trace_settings_read(Tracing *tracing, Server *server, Slice model, Buffer *json, Problem *problem);

/* Apply either all changes or none. Only trace_level has several values. A change without a value resets a model's
 * setting to the server's, and the server's to the default.
 */
bool trace_settings_change(
    Tracing *tracing, Server *server, Slice model, const TraceChange *changes, size_t count, Problem *problem);

#endif
