/* Parsers for the values of tritonserver's options, and the core's function for each. */
#ifndef PYTRITON_FRONT_OPTION_VALUES_H
#define PYTRITON_FRONT_OPTION_VALUES_H

#include "base/names.h"
#include "core/options.h"

/* The options under construction. */
typedef struct {
    TRITONSERVER_ServerOptions *options;
    OptionsKept *kept;
    Names caches; /* name -> Text of JSON without its closing brace */
    bool polls;
    unsigned poll_s;
} Making;

typedef struct Kind Kind;
/* Set an option's value. */
typedef bool (*Take)(Making *making, const Kind *kind, const char *value, Problem *problem);

/* An option: the parser for its value, and the core's function. */
struct Kind {
    const char *name;
    Take take;
    size_t function; /* offset in Api */
};

bool take_bool(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_string(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_unsigned(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_size(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_milliseconds(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_double(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_exit_timeout(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_poll(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_metrics(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_log_level(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_log_verbose(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_log_format(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_log_file(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_trace(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_old_trace(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_control(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_rate_limit(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_no_completion(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_device_size(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_gpu_limit(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_resource(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_setting(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_cache(Making *making, const Kind *kind, const char *value, Problem *problem);
bool take_cache_size(Making *making, const Kind *kind, const char *value, Problem *problem);

#endif
