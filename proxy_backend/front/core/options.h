/* The options of tritonserver's command line, as the core takes them. */
#ifndef PYTRITON_FRONT_OPTIONS_H
#define PYTRITON_FRONT_OPTIONS_H

#include "base/text.h"
#include "core/api.h"

/* One of the command line, `--name=value`. Those that are lists are given several times. */
typedef struct {
    const char *name, *value;
} Option;

/* What the front does with options itself. */
typedef struct {
    unsigned exit_timeout_s;
    unsigned poll_s;   /* how often repositories are looked at; 0: never */
    bool metrics;      /* there are some */
    Text trace_config; /* each value of trace-config: "mode,setting=value" or "setting=value", and a line break */
    /* The core does not tell how its log is set. */
    char *log_file;
    bool log_info, log_warning, log_error, log_iso8601;
    unsigned log_verbose;
} OptionsKept;

/* Make the core's options of these. One that is not known, or whose value is wrong, is a problem. */
bool options_make(
    const Option *options, size_t count, TRITONSERVER_ServerOptions **made, OptionsKept *kept, Problem *problem);
void options_free(OptionsKept *kept);

#endif
