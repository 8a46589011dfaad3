/* As much of Triton's core as calls need: models whose names say how they answer. A library of its own, as the core is.
 *
 * echo: in ServerInferAsync itself. thread: in a thread. early: the request is released before it is answered. many: so many answers as
 * parameter "answers" says, and then that it was all. racing: from several threads at once. held: when it has been cancelled. late: as echo, when it has been cancelled. refused: not
 * at all. unfit: as that, and its trace is left to whoever made it. coming: as echo, once it has been loaded. huge: wants more memory than there is. failing: an error. odd: texts that are no UTF-8. short: fewer bytes than its shape says.
 */
#include "fake_core.h"

#include <stdio.h>
#include <stdlib.h>

pthread_mutex_t core_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t core_changed = PTHREAD_COND_INITIALIZER;
size_t core_threads;

TRITONSERVER_Error *TRITONSERVER_ServerIsReady(TRITONSERVER_Server *server, bool *ready);
TRITONSERVER_Error *TRITONSERVER_ServerIsReady(TRITONSERVER_Server *server, bool *ready)
{
    (void)server;
    *ready = true;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerIsLive(TRITONSERVER_Server *server, bool *live);
TRITONSERVER_Error *TRITONSERVER_ServerIsLive(TRITONSERVER_Server *server, bool *live)
{
    return TRITONSERVER_ServerIsReady(server, live);
}

/* Nobody looks into it. */
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value);
TRITONSERVER_Parameter *TRITONSERVER_ParameterNew(const char *name, int type, const void *value)
{
    static int parameter;
    (void)name;
    (void)type;
    (void)value;
    return (TRITONSERVER_Parameter *)&parameter;
}

TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, const int line, const char *text);
TRITONSERVER_Error *TRITONSERVER_LogMessage(int level, const char *file, const int line, const char *text)
{
    fprintf(stderr, "%c %s:%d] %s\n", "IWEV"[level], file, line, text);
    return NULL;
}

static bool has_come; /* the model "coming" */

static bool is_model(const char *model)
{
    if (strcmp(model, "coming") == 0)
        return __atomic_load_n(&has_come, __ATOMIC_ACQUIRE);
    static const char *const models[] = {"echo", "thread", "early", "many", "racing", "held", "refused", "huge",
        "failing", "odd", "short", "talking", "unfit", "late"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        if (strcmp(models[i], model) == 0)
            return true;
    return false;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server *server, const char *model, int64_t version, uint32_t *flags, void **unused)
{
    (void)server;
    (void)unused;
    if (!is_model(model) || version > 1)
        return TRITONSERVER_ErrorNew(TRITON_ERROR_NOT_FOUND, "Request for unknown model");
    *flags = strcmp(model, "many") == 0 || strcmp(model, "talking") == 0 ? ANSWERS_MANY_TIMES : ANSWERS_ONCE;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelBatchProperties(
    TRITONSERVER_Server *server, const char *model, int64_t version, uint32_t *flags, void **unused)
{
    (void)server;
    (void)version;
    (void)unused;
    *flags = strcmp(model, "echo") == 0 ? BATCH_FIRST_DIM : 1;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerModelIsReady(
    TRITONSERVER_Server *server, const char *model, int64_t version, bool *ready)
{
    (void)server;
    *ready = is_model(model) && version <= 1;
    if (strcmp(model, "unknown to a later core") == 0)
        return TRITONSERVER_ErrorNew(TRITON_ERROR_NOT_FOUND, "Request for unknown model");
    if (strcmp(model, "instance not ready") == 0)
        return TRITONSERVER_ErrorNew(TRITON_ERROR_UNAVAILABLE, "an instance is not ready");
    return NULL;
}

/* Nothing is said of a model that is there. */
TRITONSERVER_Error *TRITONSERVER_ServerModelMetadata(
    TRITONSERVER_Server *server, const char *model, int64_t version, TRITONSERVER_Message **message)
{
    (void)server;
    (void)version;
    *message = NULL;
    return is_model(model) ? NULL : TRITONSERVER_ErrorNew(TRITON_ERROR_NOT_FOUND, "Request for unknown model");
}

/* Those named below have the response cache switched on. */
TRITONSERVER_Error *TRITONSERVER_ServerModelConfig(TRITONSERVER_Server *server, const char *model, int64_t version,
    uint32_t config_version, TRITONSERVER_Message **message)
{
    static char cached[] = "{\"name\": \"x\", \"input\": [{\"name\": \"response_cache\"}], "
                           "\"response_cache\": {\"unknown\": [1], \"enable\": true}, \"output\": []}";
    static char uncached[] = "{\"response_cache\": {\"enable\": false}, \"dynamic_batching\": {\"enable\": true}}";
    (void)server;
    (void)version;
    (void)config_version;
    bool caches = strcmp(model, "echo") == 0 || strcmp(model, "thread") == 0 || strcmp(model, "failing") == 0 ||
        strcmp(model, "many") == 0;
    *message = (TRITONSERVER_Message *)(caches ? cached : uncached);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message *message, const char **base, size_t *size)
{
    *base = message ? (const char *)message : "{}";
    *size = strlen(*base);
    return NULL;
}

/* As with a model of TensorRT-LLM. */
TRITONSERVER_Error *TRITONSERVER_ServerMetrics(TRITONSERVER_Server *server, TRITONSERVER_Metrics **metrics)
{
    (void)server;
    *metrics = NULL;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricsFormatted(
    TRITONSERVER_Metrics *metrics, int format, const char **base, size_t *size)
{
    static const char text[] =
        "# TYPE nv_trt_llm_kv_cache_block_metrics gauge\n"
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"fraction\",model=\"m\",version=\"1\"} 0.25\n"
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"tokens_per\",model=\"m\",version=\"1\"} 64\n"
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"used\",model=\"m\",version=\"1\"} 25\n"
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=\"max\",model=\"m\",version=\"1\"} 100\n";
    (void)metrics;
    (void)format;
    *base = text;
    *size = sizeof text - 1;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_MetricsDelete(TRITONSERVER_Metrics *metrics)
{
    (void)metrics;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ServerLoadModel(TRITONSERVER_Server *server, const char *model)
{
    (void)server;
    if (strcmp(model, "coming") == 0)
        __atomic_store_n(&has_come, true, __ATOMIC_RELEASE);
    return NULL;
}

/* Wait for what is under way, as the core does. */
TRITONSERVER_Error *TRITONSERVER_ServerStop(TRITONSERVER_Server *server)
{
    (void)server;
    pthread_mutex_lock(&core_lock);
    while (core_threads)
        pthread_cond_wait(&core_changed, &core_lock);
    pthread_mutex_unlock(&core_lock);
    return NULL;
}

/* ── errors ─────────────────────────────────────────────────────────────────────────────────────── */

TRITONSERVER_Error *TRITONSERVER_ErrorNew(int code, const char *text)
{
    TRITONSERVER_Error *error = malloc(sizeof *error);
    *error = (TRITONSERVER_Error){code, strdup(text)};
    return error;
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error)
{
    free(error->text);
    free(error);
}

int TRITONSERVER_ErrorCode(TRITONSERVER_Error *error)
{
    return error->code;
}

const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error)
{
    return error->text;
}

TRITONSERVER_Error *TRITONSERVER_ApiVersion(uint32_t *major, uint32_t *minor)
{
    *major = API_MAJOR;
    *minor = API_MINOR;
    return NULL;
}
