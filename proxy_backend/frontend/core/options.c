#include "core/options.h"

#include "core/option_values.h"

#include <stdlib.h>

enum { POLL_S = 15 };

#define SET(name) offsetof(Api, ServerOptionsSet##name)

/* All options of tritonserver that are about its core. */
static const Kind table[] = {
    {"id", parse_string, SET(ServerId)},
    {"exit-timeout-secs", parse_exit_timeout, 0},
    {"log-verbose", parse_log_verbose, 0},
    {"log-info", parse_log_level, SET(LogInfo)},
    {"log-warning", parse_log_level, SET(LogWarn)},
    {"log-error", parse_log_level, SET(LogError)},
    {"log-format", parse_log_format, 0},
    {"log-file", parse_log_file, 0},
    {"model-store", parse_string, SET(ModelRepositoryPath)},
    {"model-repository", parse_string, SET(ModelRepositoryPath)},
    {"exit-on-error", parse_bool, SET(ExitOnError)},
    {"disable-auto-complete-config", parse_no_completion, 0},
    {"strict-model-config", parse_bool, SET(StrictModelConfig)},
    {"strict-readiness", parse_bool, SET(StrictReadiness)},
    {"model-control-mode", parse_control, 0},
    {"repository-poll-secs", parse_poll, 0},
    {"load-model", parse_string, SET(StartupModel)},
    {"model-config-name", parse_string, SET(ModelConfigName)},
    {"model-load-thread-count", parse_unsigned, SET(ModelLoadThreadCount)},
    {"model-load-retry-count", parse_unsigned, SET(ModelLoadRetryCount)},
    {"model-namespacing", parse_bool, SET(ModelNamespacing)},
    {"enable-peer-access", parse_bool, SET(EnablePeerAccess)},
    {"allow-metrics", parse_metrics, SET(Metrics)},
    {"allow-gpu-metrics", parse_bool, SET(GpuMetrics)},
    {"allow-cpu-metrics", parse_bool, SET(CpuMetrics)},
    {"metrics-interval-ms", parse_milliseconds, SET(MetricsInterval)},
    {"metrics-config", parse_setting, SET(MetricsConfig)},
    {"trace-config", parse_trace, 0},
    {"trace-file", parse_old_trace, 0},
    {"trace-level", parse_old_trace, 0},
    {"trace-rate", parse_old_trace, 0},
    {"trace-count", parse_old_trace, 0},
    {"trace-log-frequency", parse_old_trace, 0},
    {"backend-directory", parse_string, SET(BackendDirectory)},
    {"backend-config", parse_setting, SET(BackendConfig)},
    {"repoagent-directory", parse_string, SET(RepoAgentDirectory)},
    {"cache-config", parse_cache, 0},
    {"response-cache-byte-size", parse_cache_size, 0},
    {"cache-directory", parse_string, SET(CacheDirectory)},
    {"rate-limit", parse_rate_limit, 0},
    {"rate-limit-resource", parse_resource, 0},
    {"pinned-memory-pool-byte-size", parse_size, SET(PinnedMemoryPoolByteSize)},
    {"cuda-memory-pool-byte-size", parse_device_size, SET(CudaMemoryPoolByteSize)},
    {"cuda-virtual-address-size", parse_device_size, SET(CudaVirtualAddressSize)},
    {"min-supported-compute-capability", parse_double, SET(MinSupportedComputeCapability)},
    {"buffer-manager-thread-count", parse_unsigned, SET(BufferManagerThreadCount)},
    {"host-policy", parse_setting, SET(HostPolicy)},
    {"model-load-gpu-limit", parse_gpu_limit, 0},
};

static bool parse_one(OptionsBuilder *builder, const Option *option, Problem *problem)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, option->name) == 0)
            return table[i].parse(builder, &table[i], option->value, problem);
    return problem_set(problem, PROBLEM_INVALID, "Triton's core has no option \"%s\"", option->name);
}

/* Set the options that NVIDIA's executable always passes to the core, to the same values. Some have another default in
 * the core, or none: model-load-retry-count and enable-peer-access are uninitialised memory in every version.
 * min-supported-compute-capability depends on the core's build, and keeps the core's default. So do the directories of
 * backends, repository agents and caches.
 */
static bool set_defaults(OptionsBuilder *builder, Problem *problem)
{
    static const Option defaults[] = {
        {"id", "triton"},
        {"model-control-mode", "none"},
        {"model-config-name", ""},
        {"strict-model-config", "false"},
        {"strict-readiness", "true"},
        {"exit-on-error", "true"},
        {"exit-timeout-secs", "30"},
        {"model-load-thread-count", "4"},
        {"model-load-retry-count", "0"},
        {"model-namespacing", "false"},
        {"enable-peer-access", "true"},
        {"buffer-manager-thread-count", "0"},
        {"pinned-memory-pool-byte-size", "268435456"},
        {"rate-limit", "off"},
        {"allow-metrics", "true"},
        {"allow-gpu-metrics", "true"},
        {"allow-cpu-metrics", "true"},
        {"metrics-interval-ms", "2000"},
        {"log-info", "true"},
        {"log-warning", "true"},
        {"log-error", "true"},
        {"log-verbose", "0"},
        {"log-format", "default"},
        {"log-file", ""},
    };
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (!parse_one(builder, &defaults[i], problem))
            return false;
    return true;
}

static bool add_caches(OptionsBuilder *builder, Problem *problem)
{
    size_t position = 0;
    Slice name;
    void *value;
    while (name_table_next(&builder->caches, &position, &name, &value)) {
        Buffer *json = value;
        char *copy = slice_copy(name);
        buffer_put_char(json, '}');
        const char *text = buffer_string(json);
        bool given = copy && text
            ? api_succeeded(triton.ServerOptionsSetCacheConfig(builder->options, copy, text), problem)
            : problem_no_memory(problem);
        free(copy);
        if (!given)
            return false;
    }
    return true;
}

static void free_caches(OptionsBuilder *builder)
{
    size_t position = 0;
    Slice name;
    void *value;
    while (name_table_next(&builder->caches, &position, &name, &value)) {
        buffer_free(value);
        free(value);
    }
    name_table_free(&builder->caches);
}

bool options_build(
    const Option *options, size_t count, TRITONSERVER_ServerOptions **made, ParsedOptions *parsed, Problem *problem)
{
    *parsed = (ParsedOptions){0};
    *made = NULL;
    OptionsBuilder builder = {.parsed = parsed, .poll_s = POLL_S};
    if (!api_succeeded(triton.ServerOptionsNew(&builder.options), problem))
        return false;
    bool right = set_defaults(&builder, problem);
    for (size_t i = 0; right && i < count; i++)
        right = parse_one(&builder, &options[i], problem);
    right = right && add_caches(&builder, problem);
    free_caches(&builder);
    if (!right) {
        api_ignore(triton.ServerOptionsDelete(builder.options), "deleting options");
        options_free(parsed);
        return false;
    }
    parsed->poll_s = builder.polls ? builder.poll_s : 0;
    *made = builder.options;
    return true;
}

void options_free(ParsedOptions *parsed)
{
    buffer_free(&parsed->trace_config);
    free(parsed->log_file);
    *parsed = (ParsedOptions){0};
}
