#include "core/option_values.h"

#include "base/log.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

static bool wrong(const Kind *kind, const char *value, const char *wanted, Problem *problem)
{
    return problem_set(problem, PROBLEM_INVALID, "option %s is \"%s\", but it has to be %s", kind->name, value, wanted);
}

/* The core's function for an option. */
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

bool take_bool(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    bool yes;
    if (!read_bool(value, &yes))
        return wrong(kind, value, "true or false", problem);
    return api_succeeded(FUNCTION(kind, bool)(making->options, yes), problem);
}

bool take_string(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    return api_succeeded(FUNCTION(kind, const char *)(making->options, value), problem);
}

static bool read_unsigned(const Kind *kind, const char *value, uint64_t most, uint64_t *number, Problem *problem)
{
    if (slice_unsigned(slice_of(value), number) && *number <= most)
        return true;
    return wrong(kind, value, "a whole number, and not a huge one", problem);
}

bool take_unsigned(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    return read_unsigned(kind, value, INT_MAX, &number, problem) &&
        api_succeeded(FUNCTION(kind, unsigned)(making->options, (unsigned)number), problem);
}

bool take_size(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    return read_unsigned(kind, value, INT64_MAX, &number, problem) &&
        api_succeeded(FUNCTION(kind, uint64_t)(making->options, number), problem);
}

bool take_milliseconds(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    double number;
    if (!read_double(value, &number) || number < 1 || number > 1e12)
        return wrong(kind, value, "a number of milliseconds", problem);
    return api_succeeded(FUNCTION(kind, uint64_t)(making->options, (uint64_t)number), problem);
}

bool take_double(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    double number;
    if (!read_double(value, &number))
        return wrong(kind, value, "a number", problem);
    return api_succeeded(FUNCTION(kind, double)(making->options, number), problem);
}

/* ── options that the frontend also needs ───────────────────────────────────────────────────────── */

bool take_exit_timeout(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    if (!read_unsigned(kind, value, INT_MAX, &number, problem))
        return false;
    making->kept->exit_timeout_s = (unsigned)number;
    return api_succeeded(triton.ServerOptionsSetExitTimeout(making->options, (unsigned)number), problem);
}

bool take_poll(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t number;
    if (!read_unsigned(kind, value, INT_MAX, &number, problem))
        return false;
    if (number == 0)
        return wrong(kind, value, "at least 1", problem);
    making->poll_s = (unsigned)number;
    return true;
}

bool take_metrics(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    return take_bool(making, kind, value, problem) && read_bool(value, &making->kept->metrics);
}

bool take_log_level(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    bool yes;
    if (!take_bool(making, kind, value, problem) || !read_bool(value, &yes))
        return false;
    if (kind->function == offsetof(Api, ServerOptionsSetLogInfo))
        log_enable(LOG_INFO, making->kept->log_info = yes);
    else if (kind->function == offsetof(Api, ServerOptionsSetLogWarn))
        log_enable(LOG_WARNING, making->kept->log_warning = yes);
    else
        log_enable(LOG_ERROR, making->kept->log_error = yes);
    return true;
}

/* Set its level, which tritonserver also accepts as a boolean. */
bool take_log_verbose(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t level;
    bool yes;
    if (slice_is_nocase(slice_of(value), "true") || slice_is_nocase(slice_of(value), "false"))
        level = read_bool(value, &yes) && yes;
    else if (!read_unsigned(kind, value, INT_MAX, &level, problem))
        return false;
    making->kept->log_verbose = (unsigned)level;
    log_enable(LOG_VERBOSE, level > 0);
    return api_succeeded(triton.ServerOptionsSetLogVerbose(making->options, (int)level), problem);
}

bool take_log_format(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    bool iso = slice_is(slice_of(value), "ISO8601");
    if (!iso && !slice_is(slice_of(value), "default"))
        return wrong(kind, value, "\"default\" or \"ISO8601\"", problem);
    making->kept->log_iso8601 = iso;
    int format = iso ? FORMAT_ISO8601 : FORMAT_DEFAULT;
    return api_succeeded(triton.ServerOptionsSetLogFormat(making->options, format), problem);
}

bool take_log_file(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    (void)kind;
    free(making->kept->log_file);
    making->kept->log_file = slice_copy(slice_of(value));
    if (making->kept->log_file == NULL)
        return problem_no_memory(problem);
    return api_succeeded(triton.ServerOptionsSetLogFile(making->options, value), problem);
}

/* Store the value, under its prefix if that differs from the old one. */
static bool keep_trace(Making *making, const char *prefix, const char *value, Problem *problem)
{
    text_format(&making->kept->trace_config, "%s%s\n", prefix, value);
    return making->kept->trace_config.failed ? problem_no_memory(problem) : true;
}

bool take_trace(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    if (strchr(value, '=') == NULL || strchr(value, '\n'))
        return wrong(kind, value, "SETTING=VALUE or MODE,SETTING=VALUE", problem);
    return keep_trace(making, "", value, problem);
}

bool take_old_trace(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    static const char *const names[][2] = {{"trace-file", "triton,file="}, {"trace-level", "level="},
        {"trace-rate", "rate="}, {"trace-count", "count="}, {"trace-log-frequency", "triton,log-frequency="}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(kind->name, names[i][0]) == 0)
            return keep_trace(making, names[i][1], value, problem);
    return wrong(kind, value, "something that is known", problem);
}

/* ── words ──────────────────────────────────────────────────────────────────────────────────────── */

bool take_control(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    static const char *const words[] = {
        [CONTROL_NONE] = "none", [CONTROL_POLL] = "poll", [CONTROL_EXPLICIT] = "explicit"};
    for (int mode = CONTROL_NONE; mode <= CONTROL_EXPLICIT; mode++)
        if (slice_is(slice_of(value), words[mode])) {
            making->polls = mode == CONTROL_POLL;
            return api_succeeded(triton.ServerOptionsSetModelControlMode(making->options, mode), problem);
        }
    return wrong(kind, value, "\"none\", \"poll\" or \"explicit\"", problem);
}

bool take_rate_limit(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    bool on = slice_is(slice_of(value), "execution_count");
    if (!on && !slice_is(slice_of(value), "off"))
        return wrong(kind, value, "\"off\" or \"execution_count\"", problem);
    int mode = on ? RATE_EXECUTION_COUNT : RATE_OFF;
    return api_succeeded(triton.ServerOptionsSetRateLimiterMode(making->options, mode), problem);
}

/* Read a flag with or without a value. */
bool take_no_completion(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    bool yes = true;
    if (*value && !read_bool(value, &yes))
        return wrong(kind, value, "without a value", problem);
    return api_succeeded(triton.ServerOptionsSetStrictModelConfig(making->options, yes), problem);
}

/* ── values of several parts ────────────────────────────────────────────────────────────────────── */

enum { PARTS = 3 };

/* Split a copy of a value at separators, each used once. The part after the last one is not split. */
static char *cut(const char *value, const char *separators, char *parts[PARTS])
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

bool take_device_size(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = cut(value, ":", parts);
    uint64_t device, size;
    bool right = copy && slice_unsigned(slice_of(parts[0]), &device) && device <= INT_MAX &&
        slice_unsigned(slice_of(parts[1]), &size);
    free(copy);
    if (!right)
        return wrong(kind, value, "DEVICE:BYTES", problem);
    TRITONSERVER_Error *error = kind->function == offsetof(Api, ServerOptionsSetCudaMemoryPoolByteSize)
        ? triton.ServerOptionsSetCudaMemoryPoolByteSize(making->options, (int)device, size)
        : triton.ServerOptionsSetCudaVirtualAddressSize(making->options, (int)device, size);
    return api_succeeded(error, problem);
}

bool take_gpu_limit(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = cut(value, ":", parts);
    uint64_t device;
    double fraction;
    bool right =
        copy && slice_unsigned(slice_of(parts[0]), &device) && device <= INT_MAX && read_double(parts[1], &fraction);
    free(copy);
    if (!right)
        return wrong(kind, value, "DEVICE:FRACTION", problem);
    return api_succeeded(
        triton.ServerOptionsSetModelLoadDeviceLimit(making->options, KIND_GPU, (int)device, fraction), problem);
}

bool take_resource(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = cut(value, "::", parts);
    bool every = copy == NULL;
    if (every)
        copy = cut(value, ":", parts);
    uint64_t count, device = 0;
    bool right = copy && *parts[0] && slice_unsigned(slice_of(parts[1]), &count) &&
        (every || (slice_unsigned(slice_of(parts[2]), &device) && device <= INT_MAX));
    if (!right)
        wrong(kind, value, "NAME:COUNT or NAME:COUNT:DEVICE", problem);
    else
        right = api_succeeded(
            triton.ServerOptionsAddRateLimiterResource(making->options, parts[0], count, every ? -1 : (int)device),
            problem);
    free(copy);
    return right;
}

/* Read "GROUP,SETTING=VALUE", or "SETTING=VALUE" for all. */
bool take_setting(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    const char *comma = strchr(value, ','), *equals = strchr(value, '=');
    bool grouped = comma && equals && comma < equals;
    bool may_be_of_all = kind->function != offsetof(Api, ServerOptionsSetHostPolicy);
    char *parts[PARTS] = {0}, *copy = cut(value, grouped ? ",=" : "=", parts);
    bool right = copy && (grouped || may_be_of_all);
    if (!right) {
        wrong(kind, value, may_be_of_all ? "NAME,SETTING=VALUE or SETTING=VALUE" : "NAME,SETTING=VALUE", problem);
    } else {
        TRITONSERVER_Error *(*set)(TRITONSERVER_ServerOptions *, const char *, const char *, const char *) =
            kind->function == offsetof(Api, ServerOptionsSetBackendConfig)   ? triton.ServerOptionsSetBackendConfig
            : kind->function == offsetof(Api, ServerOptionsSetMetricsConfig) ? triton.ServerOptionsSetMetricsConfig
                                                                             : triton.ServerOptionsSetHostPolicy;
        right = api_succeeded(
            grouped ? set(making->options, parts[0], parts[1], parts[2]) : set(making->options, "", parts[0], parts[1]),
            problem);
    }
    free(copy);
    return right;
}

/* The core takes a cache's settings in one piece, as JSON, when all are known. */
static bool keep_cache(Making *making, const char *cache, const char *setting, const char *value, Problem *problem)
{
    Text *json = names_get(&making->caches, slice_of(cache));
    if (json == NULL) {
        json = calloc(1, sizeof *json);
        if (json == NULL || !names_put(&making->caches, slice_of(cache), json)) {
            free(json);
            return problem_no_memory(problem);
        }
    }
    text_format(json, "%s\"%s\":\"%s\"", json->size ? "," : "{", setting, value);
    return json->failed ? problem_no_memory(problem) : true;
}

bool take_cache(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    char *parts[PARTS], *copy = cut(value, ",=", parts);
    bool right =
        copy && *parts[0] && *parts[1] && strpbrk(parts[1], "\"\\") == NULL && strpbrk(parts[2], "\"\\") == NULL;
    if (!right)
        wrong(kind, value, "CACHE,SETTING=VALUE", problem);
    else
        right = keep_cache(making, parts[0], parts[1], parts[2], problem);
    free(copy);
    return right;
}

bool take_cache_size(Making *making, const Kind *kind, const char *value, Problem *problem)
{
    uint64_t size;
    return read_unsigned(kind, value, INT64_MAX, &size, problem) && keep_cache(making, "local", "size", value, problem);
}
