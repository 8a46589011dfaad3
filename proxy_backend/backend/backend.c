/* The entry points of the backend `pytriton_native`, which tritonserver calls. One model instance is one proxy.
 *
 * This is the compiled equivalent of proxy_backend/python_proxy, for which Triton's python backend starts a process per
 * instance. Both use the same protocols, so workers and the dispatcher cannot tell them apart.
 */
#define _GNU_SOURCE
#include "base/json.h"
#include "base/strings.h"
#include "batches/batch.h"
#include "control/control.h"
#include "proxy/proxy.h"
#include "proxy/model.h"
#include "streams/state.h"
#include "streams/streams.h"
#include "triton/api.h"
#include "triton/errors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

EXPORTED TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *backend)
{
    uint32_t major = 0, minor = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_ApiVersion(&major, &minor);
    (void)backend;
    if (error || (major == API_MAJOR && minor >= API_MINOR))
        return error;
    char *text = strdup_printf("tritonserver has version %u.%u of the backend API, but the compiled proxy needs %d.%d: "
                               "use a newer tritonserver",
        major, minor, API_MAJOR, API_MINOR);
    error = TRITONSERVER_ErrorNew(ERROR_UNSUPPORTED, text);
    free(text);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_GetBackendAttribute(
    TRITONBACKEND_Backend *backend, TRITONBACKEND_BackendAttribute *attributes)
{
    (void)backend; /* Instances are created in parallel, because each one waits for its worker. */
    return TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(attributes, true);
}

/* ── models ─────────────────────────────────────────────────────────────────────────────────────── */

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
    model->refs = 1;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelName(handle, &name);
    if (error == NULL)
        error = TRITONBACKEND_ModelVersion(handle, &version);
    if (error == NULL)
        error = TRITONBACKEND_ModelConfig(handle, 1, &message);
    if (error == NULL)
        error = TRITONSERVER_MessageSerializeToJson(message, &text, &size);
    if (error == NULL) {
        model->name = strdup(name);
        model_read_config(model, (Json){text, text + size}, version);
        if (!model->name || !(model->fixed_error || (model->endpoint && model->registration)))
            error = TRITONSERVER_ErrorNew(ERROR_INVALID_ARG,
                "this configuration lacks the settings that pytriton-daemon adds to a model that its workers serve: "
                "load the model without a configuration and files, or with a changed copy of the configuration that "
                "v2/models/NAME/config returns, or register it again");
    }
    if (message)
        triton_error_consume(TRITONSERVER_MessageDelete(message));
    if (error == NULL)
        error = TRITONBACKEND_ModelSetState(handle, model);
    if (error)
        model_unref(model);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *handle)
{
    void *model = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelState(handle, &model);
    model_unref(model);
    return error;
}

/* ── instances ──────────────────────────────────────────────────────────────────────────────────── */

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
        __atomic_add_fetch(&proxy->model->refs, 1, __ATOMIC_RELAXED);
    }
    if (error == NULL && !proxy->model->fixed_error) {
        /* Triton may briefly have two instances with the same name, while it changes their number or replaces one. */
        proxy->name =
            strdup_printf("%s:native-%d-%lu", name, (int)getpid(), __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED));
        proxy->control = control_new(proxy->model->endpoint);
        if (proxy->model->streams)
            proxy->streams = streams_new(proxy);
        char *failure = proxy->control && proxy->name
            ? proxy->model->streams ? streams_attach(proxy->streams) : proxy_attach(proxy, false)
            : strdup_printf("model %s: no dispatcher listens at %s", proxy->model->name, proxy->model->endpoint);
        if (failure)
            error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, failure);
        free(failure);
    }
    if (error == NULL)
        error = TRITONBACKEND_ModelInstanceSetState(instance, proxy);
    if (error && (proxy->streams == NULL || streams_end(proxy->streams)))
        proxy_free(proxy);
    return error;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *instance)
{
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
    Proxy *proxy = state;
    if (error == NULL && proxy && (proxy->streams == NULL || streams_end(proxy->streams)))
        proxy_end(proxy);
    return error;
}

/* Answer a readiness request. Cores from 25.12 on call this, in any thread. An instance without a worker counts as
 * ready, because requests wait for a worker. A model that can only answer with an error does not.
 */
EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance *instance);
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReady(TRITONBACKEND_ModelInstance *instance)
{
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
    if (error)
        return error;
    const Proxy *proxy = state;
    return proxy->model->fixed_error ? TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, proxy->model->fixed_error) : NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count)
{
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
    if (error) /* On an error, tritonserver answers the requests. */
        return error;
    Proxy *proxy = state;
    if (proxy->model->fixed_error) {
        batch_refuse(proxy, requests, count, proxy->model->fixed_error);
        return NULL;
    }
    if (proxy->streams) {
        streams_begin(proxy->streams, requests, count);
        return NULL;
    }
    batch_execute(proxy, requests, count);
    return NULL;
}
