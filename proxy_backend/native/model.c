/* What tritonserver calls: the backend `pytriton_native`. One instance of a model is one proxy. */
#define _GNU_SOURCE
#include "proxy.h"

#include "json.h"
#include "protocol.h"
#include "streams.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

bool failed(TRITONSERVER_Error *error)
{
    if (error == NULL)
        return false;
    TRITONSERVER_ErrorDelete(error);
    return true;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t steady_ns(void)
{
    return clock_ns(CLOCK_MONOTONIC);
}

uint64_t epoch_ns(void)
{
    return clock_ns(CLOCK_REALTIME);
}

void log_error(const char *format, ...)
{
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    failed(TRITONSERVER_LogMessage(LOG_ERROR, __FILE__, __LINE__, text));
}

char *texted(const char *format, ...)
{
    char *text = NULL;
    va_list values;
    va_start(values, format);
    if (vasprintf(&text, format, values) < 0)
        text = strdup("out of memory");
    va_end(values);
    return text;
}

bool start_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *argument)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    if (stack)
        pthread_attr_setstacksize(&attributes, stack);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are tritonserver's business */
    bool started = pthread_create(thread, &attributes, run, argument) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return started;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    uint32_t major = 0, minor = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_ApiVersion(&major, &minor);
    (void)backend;
    if (error || (major == API_MAJOR && minor >= API_MINOR))
        return error;
    char *text = texted("tritonserver's API for backends is %u.%u, and the compiled proxy was made for %d.%d: set "
                        "proxy=\"python\", or use another tritonserver",
        major, minor, API_MAJOR, API_MINOR);
    error = TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, text ? text : "out of memory");
    free(text);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend *backend, TRITONBACKEND_BackendAttribute *attributes)
{
    (void)backend; /* each instance waits for a worker of its own while it is made: all at the same time */
    return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

/* ── models ─────────────────────────────────────────────────────────────────────────────────────── */

static void free_model(Model *model)
{
    if (model == NULL || __atomic_sub_fetch(&model->holders, 1, __ATOMIC_ACQ_REL))
        return;
    free(model->name);
    free(model->endpoint);
    free(model->registration);
    free(model->version);
    free(model->stand_in);
    free(model);
}

static char *parameter(Json config, const char *name)
{
    return json_string(json_find(json_find(json_find(config, "parameters"), name), "string_value"));
}

static void read_config(Model *model, Json config, uint64_t version)
{
    Json rows = json_find(config, "max_batch_size");
    char *python_model = parameter(config, PYTHON_MODEL_PARAMETER);
    char *versions = parameter(config, VERSIONS_PARAMETER);
    model->endpoint = parameter(config, CONTROL_PARAMETER);
    model->registration = parameter(config, REGISTRATION_PARAMETER);
    model->stand_in = parameter(config, STAND_IN_PARAMETER);
    model->batching = rows.start && !json_is(rows, "0");
    model->details = python_model != NULL;
    model->streams = json_is(json_find(json_find(config, "model_transaction_policy"), "decoupled"), "true") ||
        (python_model && strcmp(python_model, "streams") == 0);
    model->number = version;
    model->version = versions ? texted("%lu", version) : NULL;
    free(python_model);
    free(versions);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *handle)
{
    Model *model = calloc(1, sizeof *model);
    TRITONSERVER_Message *message = NULL;
    const char *name, *text;
    uint64_t version;
    size_t size;
    if (model == NULL)
        return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
    model->model = handle;
    model->holders = 1;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelName(handle, &name);
    if (error == NULL)
        error = TRITONBACKEND_ModelVersion(handle, &version);
    if (error == NULL)
        error = TRITONBACKEND_ModelConfig(handle, 1, &message);
    if (error == NULL)
        error = TRITONSERVER_MessageSerializeToJson(message, &text, &size);
    if (error == NULL) {
        model->name = strdup(name);
        read_config(model, (Json){text, text + size}, version);
        if (!model->name || !(model->stand_in || (model->endpoint && model->registration)))
            error = TRITONSERVER_ErrorNew(ERROR_INVALID_ARG,
                "this configuration lacks what pytriton-daemon adds to a model that its workers serve: load the model "
                "without a configuration and files, or with the configuration that v2/models/NAME/config gives and "
                "what is to differ; else register it anew");
    }
    if (message)
        failed(TRITONSERVER_MessageDelete(message));
    if (error == NULL)
        error = TRITONBACKEND_ModelSetState(handle, model);
    if (error)
        free_model(model);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *handle)
{
    void *model = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelState(handle, &model);
    free_model(model);
    return error;
}

/* ── instances ──────────────────────────────────────────────────────────────────────────────────── */

static void free_proxy(Proxy *proxy)
{
    if (proxy == NULL)
        return;
    drop_lane(proxy);
    calls_end(proxy);
    control_free(proxy->control);
    buffer_free(&proxy->message);
    buffer_free(&proxy->avoid);
    free(proxy->worker);
    free(proxy->name);
    free_model(proxy->model);
    free(proxy);
}

void end_proxy(Proxy *proxy)
{
    if (proxy->control)
        detach(proxy);
    free_proxy(proxy);
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *instance)
{
    static uint64_t made;
    TRITONBACKEND_Model *model;
    const char *name;
    void *state = NULL;
    Proxy *proxy = calloc(1, sizeof *proxy);
    if (proxy == NULL)
        return TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
    proxy->instance = instance;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceModel(instance, &model);
    if (error == NULL)
        error = TRITONBACKEND_ModelState(model, &state);
    if (error == NULL)
        error = TRITONBACKEND_ModelInstanceName(instance, &name);
    if (error == NULL) {
        proxy->model = state;
        __atomic_add_fetch(&proxy->model->holders, 1, __ATOMIC_RELAXED);
    }
    if (error == NULL && !proxy->model->stand_in) {
        /* Triton may have two of one name for a moment: when it changes their number, or one replaces another. */
        proxy->name = texted("%s:native-%lu", name, __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED));
        proxy->control = control_new(proxy->model->endpoint);
        if (proxy->model->streams)
            proxy->streams = streams_new(proxy);
        char *failure = proxy->control && proxy->name
            ? proxy->model->streams ? streams_attach(proxy->streams) : attach(proxy)
            : texted("model %s: no dispatcher listens at %s", proxy->model->name, proxy->model->endpoint);
        if (failure)
            error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, failure);
        free(failure);
    }
    if (error == NULL)
        error = TRITONBACKEND_ModelInstanceSetState(instance, proxy);
    if (error && (proxy->streams == NULL || streams_end(proxy->streams)))
        free_proxy(proxy);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance)
{
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
    Proxy *proxy = state;
    if (error == NULL && proxy && (proxy->streams == NULL || streams_end(proxy->streams)))
        end_proxy(proxy);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count)
{
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
    if (error) /* then the requests are tritonserver's to answer */
        return error;
    Proxy *proxy = state;
    if (proxy->model->stand_in) {
        batch_refuse(proxy, requests, count, proxy->model->stand_in);
        return NULL;
    }
    if (proxy->streams) {
        streams_begin(proxy->streams, requests, count);
        return NULL;
    }
    batch_execute(proxy, requests, count);
    return NULL;
}
