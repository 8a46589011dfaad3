#include "core/options.h"

#include "core/option_values.h"

#include <stdlib.h>

enum { POLL_S = 15 };

#define SET(name) offsetof(Api, ServerOptionsSet##name)

/* All options of tritonserver that concern its core. */
static const Kind table[] = {
    {"id", take_string, SET(ServerId)},
    {"exit-timeout-secs", take_exit_timeout, 0},
    {"log-verbose", take_log_verbose, 0},
    {"log-info", take_log_level, SET(LogInfo)},
    {"log-warning", take_log_level, SET(LogWarn)},
    {"log-error", take_log_level, SET(LogError)},
    {"log-format", take_log_format, 0},
    {"log-file", take_log_file, 0},
    {"model-store", take_string, SET(ModelRepositoryPath)},
    {"model-repository", take_string, SET(ModelRepositoryPath)},
    {"exit-on-error", take_bool, SET(ExitOnError)},
    {"disable-auto-complete-config", take_no_completion, 0},
    {"strict-model-config", take_bool, SET(StrictModelConfig)},
    {"strict-readiness", take_bool, SET(StrictReadiness)},
    {"model-control-mode", take_control, 0},
    {"repository-poll-secs", take_poll, 0},
    {"load-model", take_string, SET(StartupModel)},
    {"model-config-name", take_string, SET(ModelConfigName)},
    {"model-load-thread-count", take_unsigned, SET(ModelLoadThreadCount)},
    {"model-load-retry-count", take_unsigned, SET(ModelLoadRetryCount)},
    {"model-namespacing", take_bool, SET(ModelNamespacing)},
    {"enable-peer-access", take_bool, SET(EnablePeerAccess)},
    {"allow-metrics", take_metrics, SET(Metrics)},
    {"allow-gpu-metrics", take_bool, SET(GpuMetrics)},
    {"allow-cpu-metrics", take_bool, SET(CpuMetrics)},
    {"metrics-interval-ms", take_milliseconds, SET(MetricsInterval)},
    {"metrics-config", take_setting, SET(MetricsConfig)},
    {"trace-config", take_trace, 0},
    {"trace-file", take_old_trace, 0},
    {"trace-level", take_old_trace, 0},
    {"trace-rate", take_old_trace, 0},
    {"trace-count", take_old_trace, 0},
    {"trace-log-frequency", take_old_trace, 0},
    {"backend-directory", take_string, SET(BackendDirectory)},
    {"backend-config", take_setting, SET(BackendConfig)},
    {"repoagent-directory", take_string, SET(RepoAgentDirectory)},
    {"cache-config", take_cache, 0},
    {"response-cache-byte-size", take_cache_size, 0},
    {"cache-directory", take_string, SET(CacheDirectory)},
    {"rate-limit", take_rate_limit, 0},
    {"rate-limit-resource", take_resource, 0},
    {"pinned-memory-pool-byte-size", take_size, SET(PinnedMemoryPoolByteSize)},
    {"cuda-memory-pool-byte-size", take_device_size, SET(CudaMemoryPoolByteSize)},
    {"cuda-virtual-address-size", take_device_size, SET(CudaVirtualAddressSize)},
    {"min-supported-compute-capability", take_double, SET(MinSupportedComputeCapability)},
    {"buffer-manager-thread-count", take_unsigned, SET(BufferManagerThreadCount)},
    {"host-policy", take_setting, SET(HostPolicy)},
    {"model-load-gpu-limit", take_gpu_limit, 0},
};

static bool take_one(Making *making, const Option *option, Problem *problem)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (strcmp(table[i].name, option->name) == 0)
            return table[i].take(making, &table[i], option->value, problem);
    return problem_set(problem, PROBLEM_INVALID, "there is no option \"%s\" of Triton's core", option->name);
}

/* Set the options that NVIDIA's executable always passes to the core, with its values. Some have no default in the
 * core (model-load-retry-count and enable-peer-access in every version: uninitialised memory), others have a
 * different one. min-supported-compute-capability is left to the core, since it depends on the core's build; so are
 * the folders of backends, repository agents and caches.
 */
static bool take_defaults(Making *making, Problem *problem)
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
        if (!take_one(making, &defaults[i], problem))
            return false;
    return true;
}

static bool give_caches(Making *making, Problem *problem)
{
    size_t position = 0;
    Slice name;
    void *value;
    while (names_next(&making->caches, &position, &name, &value)) {
        Text *json = value;
        char *copy = slice_copy(name);
        text_put_char(json, '}');
        const char *text = text_string(json);
        bool given = copy && text
            ? api_succeeded(triton.ServerOptionsSetCacheConfig(making->options, copy, text), problem)
            : problem_no_memory(problem);
        free(copy);
        if (!given)
            return false;
    }
    return true;
}

static void free_caches(Making *making)
{
    size_t position = 0;
    Slice name;
    void *value;
    while (names_next(&making->caches, &position, &name, &value)) {
        text_free(value);
        free(value);
    }
    names_free(&making->caches);
}

bool options_make(
    const Option *options, size_t count, TRITONSERVER_ServerOptions **made, OptionsKept *kept, Problem *problem)
{
    *kept = (OptionsKept){0};
    *made = NULL;
    Making making = {.kept = kept, .poll_s = POLL_S};
    if (!api_succeeded(triton.ServerOptionsNew(&making.options), problem))
        return false;
    bool right = take_defaults(&making, problem);
    for (size_t i = 0; right && i < count; i++)
        right = take_one(&making, &options[i], problem);
    right = right && give_caches(&making, problem);
    free_caches(&making);
    if (!right) {
        api_ignore(triton.ServerOptionsDelete(making.options), "deleting options");
        options_free(kept);
        return false;
    }
    kept->poll_s = making.polls ? making.poll_s : 0;
    *made = making.options;
    return true;
}

void options_free(OptionsKept *kept)
{
    text_free(&kept->trace_config);
    free(kept->log_file);
    *kept = (OptionsKept){0};
}
