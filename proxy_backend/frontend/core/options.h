/* The options of tritonserver's command line, converted for the core. */
#ifndef PYTRITON_FRONTEND_CORE_OPTIONS_H
#define PYTRITON_FRONTEND_CORE_OPTIONS_H

#include "common/buffer.h"
#include "core/api.h"

/* A command line option, `--name=value`. Lists are given as several options. */
typedef struct {
    const char *name, *value;
} Option;

/* Options that the frontend handles itself. */
typedef struct {
    unsigned exit_timeout_s;
    unsigned poll_s;   /* interval between repository checks; 0: never */
    bool metrics;      /* metrics are enabled */
    Buffer trace_config; /* each value of trace-config: "mode,setting=value" or "setting=value", and a line break */
    /* The core does not report its log settings. */
    char *log_file;
    bool log_info, log_warning, log_error, log_iso8601;
    unsigned log_verbose;
} ParsedOptions;

/* Convert these to the core's options. An unknown one, or an invalid value, is a problem. */
bool options_build(
    const Option *options, size_t count, TRITONSERVER_ServerOptions **made, ParsedOptions *parsed, Problem *problem);
void options_free(ParsedOptions *parsed);

#endif
