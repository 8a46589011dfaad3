#include "admin/log_settings.h"

#include "base/log.h"
#include "common/json_writer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The settings that a request asks for: a changed copy of the current ones. */
typedef struct {

    bool info, warning, error, iso8601;
    unsigned verbose;
} Wanted;

bool log_settings_read(Server *server, Buffer *json, Problem *problem)
{
    pthread_mutex_lock(&server->lock);
    const ParsedOptions *options = &server->options;
    buffer_put_string(json, "{\"log_file\":");
    json_put_sanitized(json, slice_of(options->log_file ? options->log_file : ""));
    buffer_format(json,
        ",\"log_info\":%s,\"log_warning\":%s,\"log_error\":%s,\"log_verbose_level\":%u,\"log_format\":\"%s\"}",
        options->log_info ? "true" : "false", options->log_warning ? "true" : "false",
        options->log_error ? "true" : "false", options->log_verbose, options->log_iso8601 ? "ISO8601" : "default");
    pthread_mutex_unlock(&server->lock);
    return json->failed ? problem_no_memory(problem) : true;
}

static bool want_flag(const LogChange *change, bool *wanted, Problem *problem)
{
    if (change->type != PARAMETER_BOOL)
        return problem_set(problem, PROBLEM_INVALID, "log setting '%.*s' must be a boolean", SLICE_ARGS(change->name));
    *wanted = change->boolean;
    return true;
}

static bool want_format(const LogChange *change, bool *iso8601, Problem *problem)
{
    *iso8601 = change->type == PARAMETER_STRING && slice_is(change->string, "ISO8601");
    if (*iso8601 || (change->type == PARAMETER_STRING && slice_is(change->string, "default")))
        return true;
    return problem_set(problem, PROBLEM_INVALID, "log setting 'log_format' must be \"default\" or \"ISO8601\"");
}

static bool parse_change(const LogChange *change, Wanted *wanted, Problem *problem)
{
    if (slice_is(change->name, "log_file"))
        return problem_set(
            problem, PROBLEM_UNSUPPORTED, "log file location can not be updated through network protocol");
    if (slice_is(change->name, "log_info"))
        return want_flag(change, &wanted->info, problem);
    if (slice_is(change->name, "log_warning"))
        return want_flag(change, &wanted->warning, problem);
    if (slice_is(change->name, "log_error"))
        return want_flag(change, &wanted->error, problem);
    if (slice_is(change->name, "log_format"))
        return want_format(change, &wanted->iso8601, problem);
    if (!slice_is(change->name, "log_verbose_level"))
        return problem_set(problem, PROBLEM_INVALID, "there is no log setting '%.*s'",
            change->name.size < 100 ? (int)change->name.size : 100, change->name.start ? change->name.start : "");
    if (change->type != PARAMETER_INT || change->integer > INT_MAX)
        return problem_set(
            problem, PROBLEM_INVALID, "log setting 'log_verbose_level' must be a whole number, 0 or more");
    wanted->verbose = (unsigned)change->integer;
    return true;
}

/* Apply the settings. With NULL for the options, the functions take effect at once. */
static bool apply_settings(const Wanted *wanted, Problem *problem)
{
    return api_succeeded(triton.ServerOptionsSetLogInfo(NULL, wanted->info), problem) &&
        api_succeeded(triton.ServerOptionsSetLogWarn(NULL, wanted->warning), problem) &&
        api_succeeded(triton.ServerOptionsSetLogError(NULL, wanted->error), problem) &&
        api_succeeded(triton.ServerOptionsSetLogVerbose(NULL, (int)wanted->verbose), problem) &&
        api_succeeded(
            triton.ServerOptionsSetLogFormat(NULL, wanted->iso8601 ? FORMAT_ISO8601 : FORMAT_DEFAULT), problem);
}

/* Report the settings to the dispatcher. The caller holds the lock, so that reports are in the order of changes. */
static void report_settings(const ParsedOptions *options)
{
    char line[128];
    int size = snprintf(line, sizeof line, "\x1elog settings: info=%d warning=%d error=%d verbose=%u\n",
        options->log_info, options->log_warning, options->log_error, options->log_verbose);
    ssize_t ignored = write(STDERR_FILENO, line, (size_t)size);
    (void)ignored;
}

void log_settings_report(Server *server)
{
    pthread_mutex_lock(&server->lock);
    report_settings(&server->options);
    pthread_mutex_unlock(&server->lock);
}

bool log_settings_change(Server *server, const LogChange *changes, size_t count, Problem *problem)
{
    pthread_mutex_lock(&server->lock);
    ParsedOptions *options = &server->options;
    Wanted wanted = {.info = options->log_info,
        .warning = options->log_warning,
        .error = options->log_error,
        .iso8601 = options->log_iso8601,
        .verbose = options->log_verbose};
    bool right = true;
    for (size_t i = 0; right && i < count; i++)
        right = parse_change(&changes[i], &wanted, problem);
    right = right && apply_settings(&wanted, problem);
    if (right) {
        options->log_info = wanted.info;
        options->log_warning = wanted.warning;
        options->log_error = wanted.error;
        options->log_iso8601 = wanted.iso8601;
        options->log_verbose = wanted.verbose;
        log_enable(LOG_INFO, wanted.info);
        log_enable(LOG_WARNING, wanted.warning);
        log_enable(LOG_ERROR, wanted.error);
        log_enable(LOG_VERBOSE, wanted.verbose > 0);
        report_settings(options);
    }
    pthread_mutex_unlock(&server->lock);
    return right;
}
