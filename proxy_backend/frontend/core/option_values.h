/* Parsers for the values of tritonserver's options, which call the core's functions. */
#ifndef PYTRITON_FRONTEND_CORE_OPTION_VALUES_H
#define PYTRITON_FRONTEND_CORE_OPTION_VALUES_H

#include "base/name_table.h"
#include "core/options.h"

/* The core's options while they are being built. */
typedef struct {
    TRITONSERVER_ServerOptions *options;
    ParsedOptions *parsed;
    NameTable caches; /* by cache name: a Buffer with JSON that lacks its closing brace */
    bool polls;
    unsigned poll_s;
} OptionsBuilder;

typedef struct Kind Kind;
/* Parse and set the value of an option. */
typedef bool (*Parse)(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);

/* An option of the command line, and how to set it. */
struct Kind {
    const char *name;
    Parse parse;
    size_t function; /* offset of the core's function in Api */
};

bool parse_bool(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_string(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_unsigned(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_size(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_milliseconds(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_double(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_exit_timeout(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_poll(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_metrics(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_log_level(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_log_verbose(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_log_format(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_log_file(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_trace(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_old_trace(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_control(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_rate_limit(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_no_completion(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_device_size(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_gpu_limit(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_resource(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_setting(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_cache(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);
bool parse_cache_size(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem);

#endif
