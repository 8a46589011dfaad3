/* Triton's C API for servers (version 1.34), declared from its documentation. Its functions are resolved when the core
 * is loaded: `triton.ServerIsLive(server, &live)` calls TRITONSERVER_ServerIsLive. A process has one core.
 */
#ifndef PYTRITON_FRONTEND_CORE_API_H
#define PYTRITON_FRONTEND_CORE_API_H

#include "base/problem.h"
#include "common/datatypes.h"

/* The oldest version that is known to have all functions below. Later ones of the same major version have them, too.
 * An older core can be used if it has all of them.
 */
enum { API_MAJOR = 1, API_MINOR = 34 };

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONSERVER_InferenceRequest TRITONSERVER_InferenceRequest;
typedef struct TRITONSERVER_InferenceResponse TRITONSERVER_InferenceResponse;
typedef struct TRITONSERVER_InferenceTrace TRITONSERVER_InferenceTrace;
typedef struct TRITONSERVER_Message TRITONSERVER_Message;
typedef struct TRITONSERVER_Metrics TRITONSERVER_Metrics;
typedef struct TRITONSERVER_Parameter TRITONSERVER_Parameter;
typedef struct TRITONSERVER_ResponseAllocator TRITONSERVER_ResponseAllocator;
typedef struct TRITONSERVER_Server TRITONSERVER_Server;
typedef struct TRITONSERVER_ServerOptions TRITONSERVER_ServerOptions;

/* The API's enumerations. Their values are part of its ABI. */
enum {
    TRITON_ERROR_UNKNOWN,
    TRITON_ERROR_INTERNAL,
    TRITON_ERROR_NOT_FOUND,
    TRITON_ERROR_INVALID_ARG,
    TRITON_ERROR_UNAVAILABLE,
    TRITON_ERROR_UNSUPPORTED,
    TRITON_ERROR_ALREADY_EXISTS,
    TRITON_ERROR_CANCELLED,
};
enum { MEMORY_CPU, MEMORY_CPU_PINNED, MEMORY_GPU };
enum { PARAMETER_STRING, PARAMETER_INT, PARAMETER_BOOL, PARAMETER_DOUBLE, PARAMETER_BYTES };
enum { KIND_AUTO, KIND_CPU, KIND_GPU, KIND_MODEL };
enum { FORMAT_DEFAULT, FORMAT_ISO8601 };
enum { CONTROL_NONE, CONTROL_POLL, CONTROL_EXPLICIT };
enum { RATE_OFF, RATE_EXECUTION_COUNT };
enum { SEQUENCE_START = 1, SEQUENCE_END = 2 };
enum { RELEASE_ALL = 1 };
enum { RESPONSE_FINAL = 1 };
enum { BATCH_FIRST_DIM = 2 };
enum { ANSWERS_ONCE = 1, ANSWERS_MANY_TIMES = 2 };
enum { INDEX_READY = 1 };
enum { METRICS_PROMETHEUS };
enum { TRACE_DISABLED = 0, TRACE_TIMESTAMPS = 4, TRACE_TENSORS = 8 };
enum {
    ACTIVITY_REQUEST_START,
    ACTIVITY_QUEUE_START,
    ACTIVITY_COMPUTE_START,
    ACTIVITY_COMPUTE_INPUT_END,
    ACTIVITY_COMPUTE_OUTPUT_START,
    ACTIVITY_COMPUTE_END,
    ACTIVITY_REQUEST_END,
    ACTIVITY_TENSOR_QUEUE_INPUT,
    ACTIVITY_TENSOR_BACKEND_INPUT,
    ACTIVITY_TENSOR_BACKEND_OUTPUT,
    ACTIVITY_CUSTOM,
};

/* Callbacks of the core. */
typedef TRITONSERVER_Error *(*AllocateOutput)(TRITONSERVER_ResponseAllocator *allocator, const char *output,
    size_t size, int memory_type, int64_t memory_type_id, void *userp, void **buffer, void **buffer_userp,
    int *actual_memory_type, int64_t *actual_memory_type_id);
typedef TRITONSERVER_Error *(*ReleaseOutput)(TRITONSERVER_ResponseAllocator *allocator, void *buffer,
    void *buffer_userp, size_t size, int memory_type, int64_t memory_type_id);
typedef TRITONSERVER_Error *(*StartResponse)(TRITONSERVER_ResponseAllocator *allocator, void *userp);
/* `size`, which may be NULL, and the kind of memory are the preferred ones before the call, and the provided ones
 * after it.
 */
typedef TRITONSERVER_Error *(*QueryOutput)(TRITONSERVER_ResponseAllocator *allocator, void *userp, const char *output,
    size_t *size, int *memory_type, int64_t *memory_type_id);
/* The callee takes ownership of the request. */
typedef void (*RequestReleased)(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp);
/* The callee owns the response, which may be NULL. */
typedef void (*ResponseComplete)(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp);
typedef void (*TraceActivity)(TRITONSERVER_InferenceTrace *trace, int activity, uint64_t timestamp_ns, void *userp);
typedef void (*TraceTensor)(TRITONSERVER_InferenceTrace *trace, int activity, const char *name, int datatype,
    const void *bytes, size_t size, const int64_t *shape, uint64_t dims, int memory_type, int64_t memory_type_id,
    void *userp);
/* The callee takes ownership of the trace. */
typedef void (*TraceReleased)(TRITONSERVER_InferenceTrace *trace, void *userp);

/* The functions: X(return type, name without TRITONSERVER_, parameters). An error that they return is NULL on success.
 */
#define API_FUNCTIONS(X)                                                                                               \
    X(TRITONSERVER_Error *, ApiVersion, (uint32_t *major, uint32_t *minor))                                            \
    API_BASICS(X) API_REQUESTS(X) API_RESPONSES(X) API_TRACES(X) API_OPTIONS(X) API_SERVER(X)

#define API_BASICS(X)                                                                                                  \
    X(TRITONSERVER_Error *, ErrorNew, (int code, const char *message))                                                 \
    X(void, ErrorDelete, (TRITONSERVER_Error * error))                                                                 \
    X(int, ErrorCode, (TRITONSERVER_Error * error))                                                                    \
    X(const char *, ErrorMessage, (TRITONSERVER_Error * error))                                                        \
    X(bool, LogIsEnabled, (int level))                                                                                 \
    X(TRITONSERVER_Error *, LogMessage, (int level, const char *file, const int line, const char *text))               \
    X(TRITONSERVER_Error *, MessageSerializeToJson, (TRITONSERVER_Message * message, const char **text, size_t *size)) \
    X(TRITONSERVER_Error *, MessageDelete, (TRITONSERVER_Message * message))                                           \
    X(TRITONSERVER_Parameter *, ParameterNew, (const char *name, int type, const void *value))                         \
    X(TRITONSERVER_Parameter *, ParameterBytesNew, (const char *name, const void *bytes, uint64_t size))               \
    X(void, ParameterDelete, (TRITONSERVER_Parameter * parameter))                                                     \
    X(TRITONSERVER_Error *, ServerMetrics, (TRITONSERVER_Server * server, TRITONSERVER_Metrics * *metrics))            \
    X(TRITONSERVER_Error *, MetricsFormatted,                                                                          \
        (TRITONSERVER_Metrics * metrics, int format, const char **text, size_t *size))                                 \
    X(TRITONSERVER_Error *, MetricsDelete, (TRITONSERVER_Metrics * metrics))

#define API_REQUESTS(X)                                                                                                \
    X(TRITONSERVER_Error *, InferenceRequestNew,                                                                       \
        (TRITONSERVER_InferenceRequest * *request, TRITONSERVER_Server * server, const char *model, int64_t version))  \
    X(TRITONSERVER_Error *, InferenceRequestDelete, (TRITONSERVER_InferenceRequest * request))                         \
    X(TRITONSERVER_Error *, InferenceRequestCancel, (TRITONSERVER_InferenceRequest * request))                         \
    X(TRITONSERVER_Error *, InferenceRequestSetId, (TRITONSERVER_InferenceRequest * request, const char *id))          \
    X(TRITONSERVER_Error *, InferenceRequestSetFlags, (TRITONSERVER_InferenceRequest * request, uint32_t flags))       \
    X(TRITONSERVER_Error *, InferenceRequestSetCorrelationId, (TRITONSERVER_InferenceRequest * request, uint64_t id))  \
    X(TRITONSERVER_Error *, InferenceRequestSetCorrelationIdString,                                                    \
        (TRITONSERVER_InferenceRequest * request, const char *id))                                                     \
    X(TRITONSERVER_Error *, InferenceRequestSetPriorityUInt64,                                                         \
        (TRITONSERVER_InferenceRequest * request, uint64_t priority))                                                  \
    X(TRITONSERVER_Error *, InferenceRequestSetTimeoutMicroseconds,                                                    \
        (TRITONSERVER_InferenceRequest * request, uint64_t timeout_us))                                                \
    X(TRITONSERVER_Error *, InferenceRequestAddInput,                                                                  \
        (TRITONSERVER_InferenceRequest * request, const char *name, int datatype, const int64_t *shape,                \
            uint64_t dims))                                                                                            \
    X(TRITONSERVER_Error *, InferenceRequestAddRawInput, (TRITONSERVER_InferenceRequest * request, const char *name))  \
    X(TRITONSERVER_Error *, InferenceRequestAppendInputData,                                                           \
        (TRITONSERVER_InferenceRequest * request, const char *name, const void *bytes, size_t size, int memory_type,   \
            int64_t memory_type_id))                                                                                   \
    X(TRITONSERVER_Error *, InferenceRequestAddRequestedOutput,                                                        \
        (TRITONSERVER_InferenceRequest * request, const char *name))                                                   \
    X(TRITONSERVER_Error *, InferenceRequestSetStringParameter,                                                        \
        (TRITONSERVER_InferenceRequest * request, const char *key, const char *value))                                 \
    X(TRITONSERVER_Error *, InferenceRequestSetIntParameter,                                                           \
        (TRITONSERVER_InferenceRequest * request, const char *key, int64_t value))                                     \
    X(TRITONSERVER_Error *, InferenceRequestSetBoolParameter,                                                          \
        (TRITONSERVER_InferenceRequest * request, const char *key, bool value))                                        \
    X(TRITONSERVER_Error *, InferenceRequestSetDoubleParameter,                                                        \
        (TRITONSERVER_InferenceRequest * request, const char *key, double value))                                      \
    X(TRITONSERVER_Error *, InferenceRequestSetReleaseCallback,                                                        \
        (TRITONSERVER_InferenceRequest * request, RequestReleased released, void *userp))                              \
    X(TRITONSERVER_Error *, InferenceRequestSetResponseCallback,                                                       \
        (TRITONSERVER_InferenceRequest * request, TRITONSERVER_ResponseAllocator * allocator, void *allocator_userp,   \
            ResponseComplete complete, void *userp))                                                                   \
    X(TRITONSERVER_Error *, ServerInferAsync,                                                                          \
        (TRITONSERVER_Server * server, TRITONSERVER_InferenceRequest * request, TRITONSERVER_InferenceTrace * trace))

#define API_RESPONSES(X)                                                                                               \
    X(TRITONSERVER_Error *, ResponseAllocatorNew,                                                                      \
        (TRITONSERVER_ResponseAllocator * *allocator, AllocateOutput allocate, ReleaseOutput release,                  \
            StartResponse start))                                                                                      \
    X(TRITONSERVER_Error *, ResponseAllocatorSetQueryFunction,                                                         \
        (TRITONSERVER_ResponseAllocator * allocator, QueryOutput query))                                               \
    X(TRITONSERVER_Error *, ResponseAllocatorDelete, (TRITONSERVER_ResponseAllocator * allocator))                     \
    X(TRITONSERVER_Error *, InferenceResponseDelete, (TRITONSERVER_InferenceResponse * response))                      \
    X(TRITONSERVER_Error *, InferenceResponseError, (TRITONSERVER_InferenceResponse * response))                       \
    X(TRITONSERVER_Error *, InferenceResponseModel,                                                                    \
        (TRITONSERVER_InferenceResponse * response, const char **model, int64_t *version))                             \
    X(TRITONSERVER_Error *, InferenceResponseId, (TRITONSERVER_InferenceResponse * response, const char **id))         \
    X(TRITONSERVER_Error *, InferenceResponseParameterCount,                                                           \
        (TRITONSERVER_InferenceResponse * response, uint32_t *count))                                                  \
    X(TRITONSERVER_Error *, InferenceResponseParameter,                                                                \
        (TRITONSERVER_InferenceResponse * response, uint32_t index, const char **name, int *type, const void **value)) \
    X(TRITONSERVER_Error *, InferenceResponseOutputCount,                                                              \
        (TRITONSERVER_InferenceResponse * response, uint32_t *count))                                                  \
    X(TRITONSERVER_Error *, InferenceResponseOutput,                                                                   \
        (TRITONSERVER_InferenceResponse * response, uint32_t index, const char **name, int *datatype,                  \
            const int64_t **shape, uint64_t *dims, const void **bytes, size_t *size, int *memory_type,                 \
            int64_t *memory_type_id, void **buffer_userp))                                                             \
    X(TRITONSERVER_Error *, InferenceResponseOutputClassificationLabel,                                                \
        (TRITONSERVER_InferenceResponse * response, uint32_t index, size_t class_index, const char **label))

#define API_TRACES(X)                                                                                                  \
    X(TRITONSERVER_Error *, InferenceTraceTensorNew,                                                                   \
        (TRITONSERVER_InferenceTrace * *trace, int level, uint64_t parent_id, TraceActivity activity,                  \
            TraceTensor tensor, TraceReleased released, void *userp))                                                  \
    X(TRITONSERVER_Error *, InferenceTraceDelete, (TRITONSERVER_InferenceTrace * trace))                               \
    X(TRITONSERVER_Error *, InferenceTraceId, (TRITONSERVER_InferenceTrace * trace, uint64_t *id))                     \
    X(TRITONSERVER_Error *, InferenceTraceParentId, (TRITONSERVER_InferenceTrace * trace, uint64_t *id))               \
    X(TRITONSERVER_Error *, InferenceTraceModelName, (TRITONSERVER_InferenceTrace * trace, const char **name))         \
    X(TRITONSERVER_Error *, InferenceTraceModelVersion, (TRITONSERVER_InferenceTrace * trace, int64_t *version))       \
    X(TRITONSERVER_Error *, InferenceTraceRequestId, (TRITONSERVER_InferenceTrace * trace, const char **id))           \
    X(TRITONSERVER_Error *, InferenceTraceSetContext, (TRITONSERVER_InferenceTrace * trace, const char *context))      \
    X(const char *, InferenceTraceActivityString, (int activity))

#define API_OPTION(X, name, type)                                                                                      \
    X(TRITONSERVER_Error *, ServerOptionsSet##name, (TRITONSERVER_ServerOptions * options, type value))
#define API_OPTION_OF(X, name)                                                                                         \
    X(TRITONSERVER_Error *, ServerOptionsSet##name,                                                                    \
        (TRITONSERVER_ServerOptions * options, const char *group, const char *setting, const char *value))
#define API_OPTIONS(X)                                                                                                 \
    X(TRITONSERVER_Error *, ServerOptionsNew, (TRITONSERVER_ServerOptions * *options))                                 \
    X(TRITONSERVER_Error *, ServerOptionsDelete, (TRITONSERVER_ServerOptions * options))                               \
    API_OPTION(X, ServerId, const char *)                                                                              \
    API_OPTION(X, ModelRepositoryPath, const char *)                                                                   \
    API_OPTION(X, ModelControlMode, int)                                                                               \
    API_OPTION(X, StartupModel, const char *)                                                                          \
    API_OPTION(X, StrictModelConfig, bool)                                                                             \
    API_OPTION(X, ModelConfigName, const char *)                                                                       \
    API_OPTION(X, RateLimiterMode, int)                                                                                \
    X(TRITONSERVER_Error *, ServerOptionsAddRateLimiterResource,                                                       \
        (TRITONSERVER_ServerOptions * options, const char *name, size_t count, int device))                            \
    API_OPTION(X, PinnedMemoryPoolByteSize, uint64_t)                                                                  \
    X(TRITONSERVER_Error *, ServerOptionsSetCudaMemoryPoolByteSize,                                                    \
        (TRITONSERVER_ServerOptions * options, int device, uint64_t size))                                             \
    X(TRITONSERVER_Error *, ServerOptionsSetCudaVirtualAddressSize,                                                    \
        (TRITONSERVER_ServerOptions * options, int device, size_t size))                                               \
    API_OPTION(X, ResponseCacheByteSize, uint64_t)                                                                     \
    X(TRITONSERVER_Error *, ServerOptionsSetCacheConfig,                                                               \
        (TRITONSERVER_ServerOptions * options, const char *cache, const char *json))                                   \
    API_OPTION(X, CacheDirectory, const char *)                                                                        \
    API_OPTION(X, MinSupportedComputeCapability, double)                                                               \
    API_OPTION(X, ExitOnError, bool)                                                                                   \
    API_OPTION(X, StrictReadiness, bool)                                                                               \
    API_OPTION(X, ExitTimeout, unsigned int)                                                                           \
    API_OPTION(X, BufferManagerThreadCount, unsigned int)                                                              \
    API_OPTION(X, ModelLoadThreadCount, unsigned int)                                                                  \
    API_OPTION(X, ModelLoadRetryCount, unsigned int)                                                                   \
    API_OPTION(X, ModelNamespacing, bool)                                                                              \
    API_OPTION(X, EnablePeerAccess, bool)                                                                              \
    API_OPTION(X, LogFile, const char *)                                                                               \
    API_OPTION(X, LogInfo, bool)                                                                                       \
    API_OPTION(X, LogWarn, bool)                                                                                       \
    API_OPTION(X, LogError, bool)                                                                                      \
    API_OPTION(X, LogFormat, int)                                                                                      \
    API_OPTION(X, LogVerbose, int)                                                                                     \
    API_OPTION(X, Metrics, bool)                                                                                       \
    API_OPTION(X, GpuMetrics, bool)                                                                                    \
    API_OPTION(X, CpuMetrics, bool)                                                                                    \
    API_OPTION(X, MetricsInterval, uint64_t)                                                                           \
    API_OPTION(X, BackendDirectory, const char *)                                                                      \
    API_OPTION(X, RepoAgentDirectory, const char *)                                                                    \
    X(TRITONSERVER_Error *, ServerOptionsSetModelLoadDeviceLimit,                                                      \
        (TRITONSERVER_ServerOptions * options, int kind, int device, double fraction))                                 \
    API_OPTION_OF(X, BackendConfig)                                                                                    \
    API_OPTION_OF(X, HostPolicy)                                                                                       \
    API_OPTION_OF(X, MetricsConfig)

#define API_SERVER(X)                                                                                                  \
    X(TRITONSERVER_Error *, ServerNew, (TRITONSERVER_Server * *server, TRITONSERVER_ServerOptions * options))          \
    X(TRITONSERVER_Error *, ServerDelete, (TRITONSERVER_Server * server))                                              \
    X(TRITONSERVER_Error *, ServerStop, (TRITONSERVER_Server * server))                                                \
    X(TRITONSERVER_Error *, ServerSetExitTimeout, (TRITONSERVER_Server * server, unsigned int seconds))                \
    X(TRITONSERVER_Error *, ServerPollModelRepository, (TRITONSERVER_Server * server))                                 \
    X(TRITONSERVER_Error *, ServerIsLive, (TRITONSERVER_Server * server, bool *live))                                  \
    X(TRITONSERVER_Error *, ServerIsReady, (TRITONSERVER_Server * server, bool *ready))                                \
    X(TRITONSERVER_Error *, ServerModelIsReady,                                                                        \
        (TRITONSERVER_Server * server, const char *model, int64_t version, bool *ready))                               \
    X(TRITONSERVER_Error *, ServerModelBatchProperties,                                                                \
        (TRITONSERVER_Server * server, const char *model, int64_t version, uint32_t *flags, void **unused))            \
    X(TRITONSERVER_Error *, ServerModelTransactionProperties,                                                          \
        (TRITONSERVER_Server * server, const char *model, int64_t version, uint32_t *flags, void **unused))            \
    X(TRITONSERVER_Error *, ServerMetadata, (TRITONSERVER_Server * server, TRITONSERVER_Message * *metadata))          \
    X(TRITONSERVER_Error *, ServerModelMetadata,                                                                       \
        (TRITONSERVER_Server * server, const char *model, int64_t version, TRITONSERVER_Message **metadata))           \
    X(TRITONSERVER_Error *, ServerModelStatistics,                                                                     \
        (TRITONSERVER_Server * server, const char *model, int64_t version, TRITONSERVER_Message **statistics))         \
    X(TRITONSERVER_Error *, ServerModelConfig,                                                                         \
        (TRITONSERVER_Server * server, const char *model, int64_t version, uint32_t config_version,                    \
            TRITONSERVER_Message **config))                                                                            \
    X(TRITONSERVER_Error *, ServerModelIndex,                                                                          \
        (TRITONSERVER_Server * server, uint32_t flags, TRITONSERVER_Message **index))                                  \
    X(TRITONSERVER_Error *, ServerRegisterModelRepository,                                                             \
        (TRITONSERVER_Server * server, const char *path, const TRITONSERVER_Parameter **names, const uint32_t count))  \
    X(TRITONSERVER_Error *, ServerUnregisterModelRepository, (TRITONSERVER_Server * server, const char *path))         \
    X(TRITONSERVER_Error *, ServerLoadModel, (TRITONSERVER_Server * server, const char *model))                        \
    X(TRITONSERVER_Error *, ServerLoadModelWithParameters,                                                             \
        (TRITONSERVER_Server * server, const char *model, const TRITONSERVER_Parameter **parameters, uint64_t count))  \
    X(TRITONSERVER_Error *, ServerUnloadModel, (TRITONSERVER_Server * server, const char *model))                      \
    X(TRITONSERVER_Error *, ServerUnloadModelAndDependents, (TRITONSERVER_Server * server, const char *model))

#define API_MEMBER(returned, name, parameters) returned(*name) parameters;
typedef struct {
    API_FUNCTIONS(API_MEMBER)
} Api;
#undef API_MEMBER

/* The functions. All NULL before api_load. */
extern Api triton;

/* Load the core so that backends find its functions, and resolve those that the frontend uses. Returns false with a
 * problem that names what is missing.
 */
bool api_load(const char *library, Problem *problem);

/* Returns whether `error` is NULL. Otherwise, sets the problem and deletes the error. */
bool api_succeeded(TRITONSERVER_Error *error, Problem *problem);
/* Like api_succeeded, for an error that another object owns, such as a response. */
bool api_check_borrowed(TRITONSERVER_Error *error, Problem *problem);
/* Log and delete an error that cannot be reported to anybody. `error` may be NULL. */
void api_ignore(TRITONSERVER_Error *error, const char *doing);
/* Convert a problem to an error for a callback of the core, and clear the problem. */
TRITONSERVER_Error *api_error(Problem *problem);

/* Returns the data type with this name, such as "FP32", or TYPE_INVALID. */
DataType datatype_named(Slice name);
const char *datatype_name(DataType datatype);
/* Returns the size of an element in bytes, or 0 for BYTES, whose elements each follow their size in 4 bytes. */
size_t datatype_size(DataType datatype);

#endif
