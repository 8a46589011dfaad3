/* Converts options of tritonserver's command line to options of the core. */
#ifndef PYTRITON_FRONTEND_CORE_OPTIONS_H
#define PYTRITON_FRONTEND_CORE_OPTIONS_H

#include "common/buffer.h"
#include "core/api.h"

/* An option, `--name=value`. A list is given by several options of the same name. */
typedef struct {
    const char *name, *value;
} Option;

/* Options that the frontend itself needs. */
typedef struct {
    unsigned exit_timeout_s;
    unsigned poll_s;   /* interval between checks of the repositories; 0 means never */
    bool metrics;      /* metrics are enabled */
    Buffer trace_config; /* lines with the values of trace-config: "mode,setting=value" or "setting=value" */
    /* The log settings, which the core does not report. */
    char *log_file;
    bool log_info, log_warning, log_error, log_iso8601;
    unsigned log_verbose;
} ParsedOptions;

/* Convert options to the core's. Returns false with a problem for an unknown option or an invalid value. */
bool options_build(
    const Option *options, size_t count, TRITONSERVER_ServerOptions **made, ParsedOptions *parsed, Problem *problem);
void options_free(ParsedOptions *parsed);

#endif
