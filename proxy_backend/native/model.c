/* What tritonserver calls: the backend `pytriton_native`. One instance of a model is one proxy. */
#define _GNU_SOURCE
#include "proxy.h"

#include "json.h"
#include "streams.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Parameters of the model configuration: see dispatcher/repository.py. */
#define CONTROL_PARAMETER "pytriton_control"
#define REGISTRATION_PARAMETER "pytriton_registration"
#define PYTHON_MODEL_PARAMETER "pytriton_python_model"
#define VERSIONS_PARAMETER "pytriton_versions"

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
        if (!model->name || !model->endpoint || !model->registration)
            error = TRITONSERVER_ErrorNew(ERROR_INVALID_ARG,
                "the backend pytriton_native serves what is registered with pytriton-daemon, and nothing else");
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

/* ── a batch ────────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    Proxy *proxy;
    TRITONBACKEND_Request **requests;
    uint32_t count;
    uint32_t answered; /* the first so many have been */
    uint64_t begun_ns, sent_ns, answered_ns;
    int losses;
    Unfinished *unfinished; /* to the first request that has not been answered */
} Execution;

static Receiver receiver(const Execution *batch, uint32_t index)
{
    return (Receiver){
        .request = batch->requests[index], .unfinished = index == batch->answered ? batch->unfinished : NULL};
}

/* The request has been answered, or is queued again: it belongs to tritonserver again. */
static void release(Execution *batch, uint32_t index, bool success, uint32_t flags)
{
    TRITONBACKEND_Request *request = batch->requests[index];
    uint64_t end_ns = steady_ns();
    failed(TRITONBACKEND_ModelInstanceReportStatistics(batch->proxy->instance, request, success,
        batch->begun_ns, batch->sent_ns, batch->answered_ns, end_ns));
    failed(TRITONBACKEND_RequestRelease(request, flags));
    unfinished_free(batch->unfinished);
    batch->unfinished = NULL;
}

/* Answer all that is left with an error. */
static void fail_rest(Execution *batch, TRITONSERVER_Error_Code code, const char *text)
{
    batch->sent_ns = batch->sent_ns ? batch->sent_ns : batch->begun_ns;
    batch->answered_ns = steady_ns();
    for (; batch->answered < batch->count; batch->answered++) {
        Receiver to = receiver(batch, batch->answered);
        send_error(&to, code, text);
        release(batch, batch->answered, false, RELEASE_ALL);
    }
}

/* Answer all that is left as nobody can serve it; takes the text over. */
static void give_up(Execution *batch, char *text)
{
    fail_rest(batch, ERROR_UNAVAILABLE, text);
    free(text);
}

static void protocol_fault(Execution *batch)
{
    char *text = texted("model %s: %s", batch->proxy->model->name, batch->proxy->lane->fault);
    drop_lane(batch->proxy);
    give_up(batch, text);
}

static void report_batch(Execution *batch)
{
    uint64_t rows = 0;
    for (uint32_t i = 0; i < batch->count; i++)
        rows += rows_of(batch->proxy->model, batch->requests[i]);
    failed(TRITONBACKEND_ModelInstanceReportBatchStatistics(
        batch->proxy->instance, rows, batch->begun_ns, batch->sent_ns, batch->answered_ns, steady_ns()));
}

/* Tell the worker that what it lent has been read. If it is gone, the next batch will see that. */
static void give_back(Proxy *proxy)
{
    Buffer message = {0};
    put_array(&message, 2);
    put_string(&message, "Credit");
    put_int(&message, 1);
    lane_send(proxy->lane, &message);
    buffer_free(&message);
}

/* Pass on what the worker has answered. False: it broke the protocol, or was lost. */
static bool pass_on(Execution *batch, Reader *answer)
{
    Proxy *proxy = batch->proxy;
    get_array(answer);
    Text tag = get_text(answer);
    int64_t id = get_int(answer);
    bool lent = text_is(tag, "BatchLent"), done = lent || text_is(tag, "BatchDone");
    if (answer->malformed || id != (int64_t)proxy->batch || !(done || text_is(tag, "BatchFailed"))) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker answered batch %lu with %.*s %ld",
            proxy->batch, (int)(tag.size < 40 ? tag.size : 40), tag.start, (long)id);
        return false;
    }
    batch->answered_ns = steady_ns();
    if (!done) {
        char *text = text_without_nul(get_text(answer));
        fail_rest(batch, ERROR_INTERNAL, text);
        free(text);
        return true;
    }
    uint32_t responses = get_array(answer);
    if (responses != batch->count - batch->answered) {
        snprintf(proxy->lane->fault, sizeof proxy->lane->fault, "the worker gave %u responses to %u requests",
            responses, batch->count - batch->answered);
        return false;
    }
    if (batch->answered == 0 && batch->unfinished == NULL) /* else a worker was lost, and it has been */
        report_batch(batch);
    for (; batch->answered < batch->count; batch->answered++) {
        if (lent && batch->unfinished == NULL)
            batch->unfinished = unfinished_new();
        Receiver to = receiver(batch, batch->answered);
        Outcome outcome;
        bool right = pass_response(proxy, &to, answer, &outcome);
        if (proxy->lane->lost)
            return false;
        if (right || outcome.final)
            release(batch, batch->answered, !outcome.failed, outcome.reschedule ? RELEASE_RESCHEDULE : RELEASE_ALL);
        batch->answered += !right && outcome.final;
        if (!right)
            return false;
    }
    if (lent)
        give_back(proxy);
    return true;
}

/* Hand the batch to the worker and wait for what it says. `give_up`: why nobody will answer it, for free(). */
static LaneState exchange(Execution *batch, Reader *answer, bool *again, char **given_up)
{
    Proxy *proxy = batch->proxy;
    LaneState state = lane_send(proxy->lane, &proxy->message);
    batch->sent_ns = steady_ns();
    while (state == LANE_OK) {
        state = lane_receive(proxy->lane, answer);
        if (state != LANE_SILENT)
            break;
        double wait_s = 0;
        *given_up = judge_overdue(proxy, lane_all_read(proxy->lane), &wait_s, again);
        if (*given_up || *again)
            return LANE_SILENT;
        lane_set_patience(proxy->lane, wait_s);
        proxy->waited_on = true;
        state = LANE_OK;
    }
    if (state == LANE_OK && proxy->waited_on) {
        proxy->waited_on = false;
        lane_set_patience(proxy->lane, proxy->execution_timeout_s);
    }
    return state;
}

/* Have the batch served by one worker. False: it was lost, another one has to. */
static bool served(Execution *batch)
{
    Proxy *proxy = batch->proxy;
    Reader answer;
    bool again = false;
    char *text = attach(proxy);
    if (text == NULL)
        text = put_batch(proxy, batch->requests + batch->answered, batch->count - batch->answered, &again);
    if (text) {
        give_up(batch, text);
        return true;
    }
    if (again) { /* the worker waits for this very batch */
        drop_lane(proxy);
        return false;
    }
    LaneState state = exchange(batch, &answer, &again, &text);
    if (state == LANE_OK && pass_on(batch, &answer)) {
        lane_ask_peer(proxy->lane);
        return true;
    }
    if (state == LANE_OK && proxy->lane->lost)
        state = LANE_CLOSED;
    if (state == LANE_OK || state == LANE_FAULT) {
        protocol_fault(batch);
        return true;
    }
    drop_lane(proxy);
    if (state == LANE_CLOSED)
        text = judge_loss(proxy, ++batch->losses);
    if (text)
        give_up(batch, text);
    return text != NULL;
}

EXPORTED TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(
    TRITONBACKEND_ModelInstance *instance, TRITONBACKEND_Request **requests, uint32_t count)
{
    void *state = NULL;
    TRITONSERVER_Error *error = TRITONBACKEND_ModelInstanceState(instance, &state);
    if (error) /* then the requests are tritonserver's to answer */
        return error;
    Proxy *proxy = state;
    if (proxy->streams) {
        streams_begin(proxy->streams, requests, count);
        return NULL;
    }
    Execution batch = {.proxy = proxy, .requests = requests, .count = count, .begun_ns = steady_ns()};
    while (!served(&batch))
        ;
    return NULL;
}
