#include "core/option_values.h"

#include "base/log.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

static bool set_invalid(const Kind *kind, const char *value, const char *wanted, Problem *problem)
{
    return problem_set(problem, PROBLEM_INVALID, "option %s is \"%s\", but must be %s", kind->name, value, wanted);
}

/* The core's function that sets an option. */
#define FUNCTION(kind, type)                                                                                           \
    (*(TRITONSERVER_Error * (*const *)(TRITONSERVER_ServerOptions *, type))(                                           \
        const void *)((const char *)&triton + (kind)->function))

/* ── values ─────────────────────────────────────────────────────────────────────────────────────── */

static bool read_bool(const char *value, bool *yes)
{
    static const char *const words[] = {"false", "0", "off", "true", "1", "on"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (slice_is_nocase(slice_of(value), words[i])) {
            *yes = i >= 3;
            return true;
        }
    return false;
}

static bool read_double(const char *value, double *number)
{
    char *end;
    *number = strtod(value, &end);
    return *value && *end == '\0' && isfinite(*number);
}

bool parse_bool(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    bool yes;
    if (!read_bool(value, &yes))
        return set_invalid(kind, value, "true or false", problem);
    return api_succeeded(FUNCTION(kind, bool)(builder->options, yes), problem);
}

bool parse_string(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    return api_succeeded(FUNCTION(kind, const char *)(builder->options, value), problem);
}

static bool read_unsigned(const Kind *kind, const char *value, uint64_t most, uint64_t *number, Problem *problem)
{
    if (slice_unsigned(slice_of(value), number) && *number <= most)
        return true;
    return set_invalid(kind, value, "a whole number in the allowed range", problem);
}

bool parse_unsigned(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    return read_unsigned(kind, value, INT_MAX, &number, problem) &&
        api_succeeded(FUNCTION(kind, unsigned)(builder->options, (unsigned)number), problem);
}

bool parse_size(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    return read_unsigned(kind, value, INT64_MAX, &number, problem) &&
        api_succeeded(FUNCTION(kind, uint64_t)(builder->options, number), problem);
}

bool parse_milliseconds(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    double number;
    if (!read_double(value, &number) || number < 1 || number > 1e12)
        return set_invalid(kind, value, "a number of milliseconds", problem);
    return api_succeeded(FUNCTION(kind, uint64_t)(builder->options, (uint64_t)number), problem);
}

bool parse_double(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    double number;
    if (!read_double(value, &number))
        return set_invalid(kind, value, "a number", problem);
    return api_succeeded(FUNCTION(kind, double)(builder->options, number), problem);
}

/* ── options that the frontend also needs ───────────────────────────────────────────────────────── */

bool parse_exit_timeout(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    if (!read_unsigned(kind, value, INT_MAX, &number, problem))
        return false;
    builder->parsed->exit_timeout_s = (unsigned)number;
    return api_succeeded(triton.ServerOptionsSetExitTimeout(builder->options, (unsigned)number), problem);
}

bool parse_poll(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    if (!read_unsigned(kind, value, INT_MAX, &number, problem))
        return false;
    if (number == 0)
        return set_invalid(kind, value, "at least 1", problem);
    builder->poll_s = (unsigned)number;
    return true;
}

bool parse_metrics(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    return parse_bool(builder, kind, value, problem) && read_bool(value, &builder->parsed->metrics);
}

bool parse_log_level(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    bool yes;
    if (!parse_bool(builder, kind, value, problem) || !read_bool(value, &yes))
        return false;
    if (kind->function == offsetof(Api, ServerOptionsSetLogInfo))
        log_enable(LOG_INFO, builder->parsed->log_info = yes);
    else if (kind->function == offsetof(Api, ServerOptionsSetLogWarn))
        log_enable(LOG_WARNING, builder->parsed->log_warning = yes);
    else
        log_enable(LOG_ERROR, builder->parsed->log_error = yes);
    return true;
}

/* Set the verbosity, for which tritonserver accepts a level or a boolean. */
bool parse_log_verbose(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t level;
    bool yes;
    if (slice_is_nocase(slice_of(value), "true") || slice_is_nocase(slice_of(value), "false"))
        level = read_bool(value, &yes) && yes;
    else if (!read_unsigned(kind, value, INT_MAX, &level, problem))
        return false;
    builder->parsed->log_verbose = (unsigned)level;
    log_enable(LOG_VERBOSE, level > 0);
    return api_succeeded(triton.ServerOptionsSetLogVerbose(builder->options, (int)level), problem);
}

bool parse_log_format(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    bool iso = slice_is(slice_of(value), "ISO8601");
    if (!iso && !slice_is(slice_of(value), "default"))
        return set_invalid(kind, value, "\"default\" or \"ISO8601\"", problem);
    builder->parsed->log_iso8601 = iso;
    int format = iso ? FORMAT_ISO8601 : FORMAT_DEFAULT;
    return api_succeeded(triton.ServerOptionsSetLogFormat(builder->options, format), problem);
}

bool parse_log_file(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    (void)kind;
    free(builder->parsed->log_file);
    builder->parsed->log_file = slice_copy(slice_of(value));
    if (builder->parsed->log_file == NULL)
        return problem_no_memory(problem);
    return api_succeeded(triton.ServerOptionsSetLogFile(builder->options, value), problem);
}

/* Append a line to the trace configuration. A deprecated option gets the prefix that it has in the current form. */
static bool store_trace(OptionsBuilder *builder, const char *prefix, const char *value, Problem *problem)
{
    buffer_format(&builder->parsed->trace_config, "%s%s\n", prefix, value);
    return builder->parsed->trace_config.failed ? problem_no_memory(problem) : true;
}

bool parse_trace(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    if (strchr(value, '=') == NULL || strchr(value, '\n'))
        return set_invalid(kind, value, "SETTING=VALUE or MODE,SETTING=VALUE", problem);
    return store_trace(builder, "", value, problem);
}

bool parse_old_trace(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    static const char *const names[][2] = {{"trace-file", "triton,file="}, {"trace-level", "level="},
        {"trace-rate", "rate="}, {"trace-count", "count="}, {"trace-log-frequency", "triton,log-frequency="}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(kind->name, names[i][0]) == 0)
            return store_trace(builder, names[i][1], value, problem);
    return set_invalid(kind, value, "a known option", problem);
}

/* ── words ──────────────────────────────────────────────────────────────────────────────────────── */

bool parse_control(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    static const char *const words[] = {
        [CONTROL_NONE] = "none", [CONTROL_POLL] = "poll", [CONTROL_EXPLICIT] = "explicit"};
    for (int mode = CONTROL_NONE; mode <= CONTROL_EXPLICIT; mode++)
        if (slice_is(slice_of(value), words[mode])) {
            builder->polls = mode == CONTROL_POLL;
            return api_succeeded(triton.ServerOptionsSetModelControlMode(builder->options, mode), problem);
        }
    return set_invalid(kind, value, "\"none\", \"poll\" or \"explicit\"", problem);
}

bool parse_rate_limit(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    bool on = slice_is(slice_of(value), "execution_count");
    if (!on && !slice_is(slice_of(value), "off"))
        return set_invalid(kind, value, "\"off\" or \"execution_count\"", problem);
    int mode = on ? RATE_EXECUTION_COUNT : RATE_OFF;
    return api_succeeded(triton.ServerOptionsSetRateLimiterMode(builder->options, mode), problem);
}

/* Set an option that may be given without a value. */
bool parse_no_completion(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    bool yes = true;
    if (*value && !read_bool(value, &yes))
        return set_invalid(kind, value, "without a value", problem);
    return api_succeeded(triton.ServerOptionsSetStrictModelConfig(builder->options, yes), problem);
}

/* ── values of several parts ────────────────────────────────────────────────────────────────────── */

enum { PARTS = 3 };

/* Copy a value and split the copy at separators, each of which is used once. The part after the last separator is not
 * split.
 */
static char *split_value(const char *value, const char *separators, char *parts[PARTS])
{
    char *copy = slice_copy(slice_of(value)), *rest = copy;
    for (size_t i = 0; copy && separators[i]; i++) {
        char *end = strchr(rest, separators[i]);
        if (end == NULL) {
            free(copy);
            return NULL;
        }
        *end = '\0';
        parts[i] = rest;
        rest = end + 1;
        parts[i + 1] = rest;
    }
    return copy;
}

bool parse_device_size(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = split_value(value, ":", parts);
    uint64_t device, size;
    bool right = copy && slice_unsigned(slice_of(parts[0]), &device) && device <= INT_MAX &&
        slice_unsigned(slice_of(parts[1]), &size);
    free(copy);
    if (!right)
        return set_invalid(kind, value, "DEVICE:BYTES", problem);
    TRITONSERVER_Error *error = kind->function == offsetof(Api, ServerOptionsSetCudaMemoryPoolByteSize)
        ? triton.ServerOptionsSetCudaMemoryPoolByteSize(builder->options, (int)device, size)
        : triton.ServerOptionsSetCudaVirtualAddressSize(builder->options, (int)device, size);
    return api_succeeded(error, problem);
}

bool parse_gpu_limit(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = split_value(value, ":", parts);
    uint64_t device;
    double fraction;
    bool right =
        copy && slice_unsigned(slice_of(parts[0]), &device) && device <= INT_MAX && read_double(parts[1], &fraction);
    free(copy);
    if (!right)
        return set_invalid(kind, value, "DEVICE:FRACTION", problem);
    return api_succeeded(
        triton.ServerOptionsSetModelLoadDeviceLimit(builder->options, KIND_GPU, (int)device, fraction), problem);
}

bool parse_resource(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = split_value(value, "::", parts);
    bool every = copy == NULL;
    if (every)
        copy = split_value(value, ":", parts);
    uint64_t count, device = 0;
    bool right = copy && *parts[0] && slice_unsigned(slice_of(parts[1]), &count) &&
        (every || (slice_unsigned(slice_of(parts[2]), &device) && device <= INT_MAX));
    if (!right)
        set_invalid(kind, value, "NAME:COUNT or NAME:COUNT:DEVICE", problem);
    else
        right = api_succeeded(
            triton.ServerOptionsAddRateLimiterResource(builder->options, parts[0], count, every ? -1 : (int)device),
            problem);
    free(copy);
    return right;
}

/* Read "GROUP,SETTING=VALUE", or "SETTING=VALUE" for all groups. */
bool parse_setting(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    const char *comma = strchr(value, ','), *equals = strchr(value, '=');
    bool grouped = comma && equals && comma < equals;
    bool may_be_of_all = kind->function != offsetof(Api, ServerOptionsSetHostPolicy);
    char *parts[PARTS] = {0}, *copy = split_value(value, grouped ? ",=" : "=", parts);
    bool right = copy && (grouped || may_be_of_all);
    if (!right) {
        set_invalid(kind, value, may_be_of_all ? "NAME,SETTING=VALUE or SETTING=VALUE" : "NAME,SETTING=VALUE", problem);
    } else {
        TRITONSERVER_Error *(*set)(TRITONSERVER_ServerOptions *, const char *, const char *, const char *) =
            kind->function == offsetof(Api, ServerOptionsSetBackendConfig)   ? triton.ServerOptionsSetBackendConfig
            : kind->function == offsetof(Api, ServerOptionsSetMetricsConfig) ? triton.ServerOptionsSetMetricsConfig
                                                                             : triton.ServerOptionsSetHostPolicy;
        right = api_succeeded(grouped ? set(builder->options, parts[0], parts[1], parts[2])
                                      : set(builder->options, "", parts[0], parts[1]),
            problem);
    }
    free(copy);
    return right;
}

/* Collect the settings of a cache. The core takes them together, as JSON, when all are known. */
static bool store_cache(
    OptionsBuilder *builder, const char *cache, const char *setting, const char *value, Problem *problem)
{
    Buffer *json = name_table_get(&builder->caches, slice_of(cache));
    if (json == NULL) {
        json = calloc(1, sizeof *json);
        if (json == NULL || !name_table_put(&builder->caches, slice_of(cache), json)) {
            free(json);
            return problem_no_memory(problem);
        }
    }
    buffer_format(json, "%s\"%s\":\"%s\"", json->size ? "," : "{", setting, value);
    return json->failed ? problem_no_memory(problem) : true;
}

bool parse_cache(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = split_value(value, ",=", parts);
    bool right =
        copy && *parts[0] && *parts[1] && strpbrk(parts[1], "\"\\") == NULL && strpbrk(parts[2], "\"\\") == NULL;
    if (!right)
        set_invalid(kind, value, "CACHE,SETTING=VALUE", problem);
    else
        right = store_cache(builder, parts[0], parts[1], parts[2], problem);
    free(copy);
    return right;
}

bool parse_cache_size(OptionsBuilder *builder, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t size;
    return read_unsigned(kind, value, INT64_MAX, &size, problem) &&
        store_cache(builder, "local", "size", value, problem);
}
