/* The options that the core is given: each is printed where $FAKE_CORE_OPTIONS is set. */
#include "fake_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define TAKE(name, type, format)                                                                                       \
    TRITONSERVER_Error *TRITONSERVER_ServerOptionsSet##name(TRITONSERVER_ServerOptions *options, type value);          \
    TRITONSERVER_Error *TRITONSERVER_ServerOptionsSet##name(TRITONSERVER_ServerOptions *options, type value)           \
    {                                                                                                                  \
        (void)options;                                                                                                 \
        if (getenv("FAKE_CORE_OPTIONS"))                                                                               \
            printf(#name " " format "\n", value);                                                                      \
        return NULL;                                                                                                   \
    }

TAKE(ServerId, const char *, "%s")
TAKE(ModelRepositoryPath, const char *, "%s")
TAKE(ModelControlMode, int, "%d")
TAKE(StartupModel, const char *, "%s")
TAKE(StrictModelConfig, bool, "%d")
TAKE(ModelConfigName, const char *, "%s")
TAKE(RateLimiterMode, int, "%d")
TAKE(PinnedMemoryPoolByteSize, uint64_t, "%" PRIu64)
TAKE(CacheDirectory, const char *, "%s")
TAKE(MinSupportedComputeCapability, double, "%g")
TAKE(ExitOnError, bool, "%d")
TAKE(StrictReadiness, bool, "%d")
TAKE(ExitTimeout, unsigned int, "%u")
TAKE(BufferManagerThreadCount, unsigned int, "%u")
TAKE(ModelLoadThreadCount, unsigned int, "%u")
TAKE(ModelLoadRetryCount, unsigned int, "%u")
TAKE(ModelNamespacing, bool, "%d")
TAKE(EnablePeerAccess, bool, "%d")
TAKE(LogFile, const char *, "%s")
TAKE(LogInfo, bool, "%d")
TAKE(LogWarn, bool, "%d")
TAKE(LogError, bool, "%d")
TAKE(LogFormat, int, "%d")
TAKE(LogVerbose, int, "%d")
TAKE(Metrics, bool, "%d")
TAKE(GpuMetrics, bool, "%d")
TAKE(CpuMetrics, bool, "%d")
TAKE(MetricsInterval, uint64_t, "%" PRIu64)
TAKE(BackendDirectory, const char *, "%s")
TAKE(RepoAgentDirectory, const char *, "%s")
