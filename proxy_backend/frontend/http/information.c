/* Handlers for information about the server and its models. Also runs slow operations as jobs. */
#include "admin/information.h"

#include "http/connection.h"

#include <stddef.h>

/* ── jobs ─────────────────────────────────────────────────────────────────────────────────────────── */

static void run_job(Job *job)
{
    HttpJob *self = (HttpJob *)job;
    self->done = response_begin(self->call, &self->problem) && self->work(self->call, &self->problem);
}

/* The model has been settled: run the job again, or answer the request with the problem. */
static void on_model_settled(ModelWaiter *waiter, Problem *problem)
{
    HttpCall *state = (HttpCall *)((char *)waiter - offsetof(HttpCall, waiter));
    Call *call = state->job.call;
    if (problem->kind == PROBLEM_NONE && thread_pool_submit(state->service->settings.jobs, &state->job.job, problem))
        return;
    response_send_problem(call, problem);
    call_unref(call);
}

static void end_job(Job *job)
{
    HttpJob *self = (HttpJob *)job;
    Call *call = self->call;
    Problem problem = {0};
    bool done = job->dropped ? thread_pool_refuse(&problem) : self->done;
    if (!job->dropped) {
        problem = self->problem;
        self->problem = (Problem){0}; /* The job may be run again. */
    }
    if (!done &&
        pending_models_wait(call_server(call)->pending_models, &problem, &http_call(call)->waiter, on_model_settled))
        return; /* The call may have been answered and freed. */
    if (!done)
        response_send_problem(call, &problem);
    else if (!self->responds_itself)
        response_send(call, 200, self->type, NULL, 0, 0);
    call_unref(call);
}

bool http_copy(Call *call, Slice text, Slice *copy, Problem *problem)
{
    char *memory = call_memory(call, text.size + 1);
    if (memory == NULL)
        return problem_no_memory(problem);
    if (text.size)
        memcpy(memory, text.start, text.size);
    *copy = (Slice){memory, text.size};
    return true;
}

bool http_job(HttpRequest *request, bool (*work)(Call *call, Problem *problem), const char *type, Problem *problem)
{
    Call *call = request->call;
    HttpJob *job = &http_call(call)->job;
    job->job.run = run_job;
    job->job.done = end_job;
    job->call = call;
    job->work = work;
    job->type = type;
    job->body = request->body;
    if (!http_copy(call, request->name, &job->name, problem) ||
        !http_copy(call, request->version, &job->version, problem) ||
        !http_copy(call, request->repository, &job->repository, problem))
        return false;
    /* Keep the call: the job is part of it, and may end after the answer. */
    call_ref(call);
    if (thread_pool_submit(request->service->settings.jobs, &job->job, problem))
        return true;
    call_unref(call);
    return false;
}

static Server *server_of(Call *call)
{
    return http_call(call)->service->settings.server;
}

/* ── health ───────────────────────────────────────────────────────────────────────────────────────── */

static bool respond_health(Call *call, bool good)
{
    response_send_text(call, good ? 200 : 400, TYPE_TEXT, SLICE(""));
    return true;
}

bool http_handle_live(HttpRequest *request, Problem *problem)
{
    (void)problem;
    return respond_health(request->call, server_is_live(request->service->settings.server));
}

bool http_handle_ready(HttpRequest *request, Problem *problem)
{
    (void)problem;
    return respond_health(request->call, server_is_ready(request->service->settings.server));
}

bool http_handle_model_ready(HttpRequest *request, Problem *problem)
{
    bool ready = false;
    if (!server_model_is_ready(request->service->settings.server, request->name, request->version, &ready, problem) ||
        !ready)
        return problem->kind == PROBLEM_MODEL_PENDING
            ? false
            : problem_set(problem, PROBLEM_INVALID, "Model version not ready");
    return respond_health(request->call, true);
}

/* ── metadata ─────────────────────────────────────────────────────────────────────────────────────── */

bool http_handle_server(HttpRequest *request, Problem *problem)
{
    Call *call = request->call;
    if (!response_begin(call, problem) || !server_information(server_of(call), &call->reply, problem))
        return false;
    response_send(call, 200, TYPE_JSON, NULL, 0, 0);
    return true;
}

static bool put_model(Call *call, Problem *problem)
{
    const HttpJob *job = &http_call(call)->job;
    return model_information(server_of(call), job->name, job->version, &call->reply, problem);
}

bool http_handle_model(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_model, TYPE_JSON, problem);
}

static bool put_config(Call *call, Problem *problem)
{
    const HttpJob *job = &http_call(call)->job;
    return model_configuration(server_of(call), job->name, job->version, &call->reply, problem);
}

bool http_handle_config(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_config, TYPE_JSON, problem);
}

static bool put_statistics(Call *call, Problem *problem)
{
    const HttpJob *job = &http_call(call)->job;
    return model_statistics(server_of(call), job->name, job->version, &call->reply, problem);
}

bool http_handle_model_statistics(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_statistics, TYPE_JSON, problem);
}

bool http_handle_statistics(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_statistics, TYPE_JSON, problem);
}

static bool put_metrics(Call *call, Problem *problem)
{
    const HttpSettings *settings = &http_call(call)->service->settings;
    if (!metrics_text(settings->server, &call->reply, problem))
        return false;
    if (settings->put_metrics)
        settings->put_metrics(settings->user, &call->reply);
    return true;
}

bool http_handle_metrics(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_metrics, "text/plain; charset=utf-8", problem);
}
