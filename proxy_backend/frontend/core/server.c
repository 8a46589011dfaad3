#include "core/server.h"

#include "common/clock.h"
#include "base/log.h"
#include "common/utf8.h"

#include <stdlib.h>
#include <time.h>

enum { READINESS_MAX_AGE_MS = 250 };

/* Check the repositories for changes regularly, until the server ends. */
static void *poll_repositories(void *argument)
{
    Server *server = argument;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    pthread_mutex_lock(&server->lock);
    while (!server->ends) {
        until.tv_sec += server->options.poll_s;
        while (!server->ends && pthread_cond_timedwait(&server->ending, &server->lock, &until) == 0)
            ;
        if (server->ends)
            break;
        pthread_mutex_unlock(&server->lock);
        server_count_change(server);
        api_ignore(triton.ServerPollModelRepository(server->server), "checking the repositories for changes");
        server_count_change(server);
        clock_gettime(CLOCK_MONOTONIC, &until);
        pthread_mutex_lock(&server->lock);
    }
    pthread_mutex_unlock(&server->lock);
    return NULL;
}

static bool init_waiting(Server *server, Problem *problem)
{
    pthread_condattr_t attributes;
    bool made = pthread_mutex_init(&server->lock, NULL) == 0 && pthread_condattr_init(&attributes) == 0;
    if (made) {
        made = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
            pthread_cond_init(&server->ending, &attributes) == 0;
        pthread_condattr_destroy(&attributes);
    }
    return made ? true : problem_no_memory(problem);
}

static bool start_core(Server *server, const Option *options, size_t count, Problem *problem)
{
    TRITONSERVER_ServerOptions *made;
    if (!options_build(options, count, &made, &server->options, problem))
        return false;
    bool started = api_succeeded(triton.ServerNew(&server->server, made), problem);
    api_ignore(triton.ServerOptionsDelete(made), "deleting options");
    return started;
}

Server *server_start(const char *library, const Option *options, size_t count, Problem *problem)
{
    if (triton.ApiVersion == NULL && !api_load(library, problem))
        return NULL;
    Server *server = calloc(1, sizeof *server);
    if (server == NULL || !init_waiting(server, problem)) {
        free(server);
        problem_no_memory(problem);
        return NULL;
    }
    if (!start_core(server, options, count, problem)) {
        server_free(server);
        return NULL;
    }
    if (server->options.poll_s) {
        server->polls = pthread_create(&server->poller, NULL, poll_repositories, server) == 0;
        if (!server->polls) {
            server_free(server);
            problem_no_memory(problem);
            return NULL;
        }
    }
    return server;
}

static void stop_polling(Server *server)
{
    pthread_mutex_lock(&server->lock);
    server->ends = true;
    pthread_cond_signal(&server->ending);
    pthread_mutex_unlock(&server->lock);
    if (server->polls)
        pthread_join(server->poller, NULL);
    server->polls = false;
}

bool server_stop(Server *server, Problem *problem)
{
    stop_polling(server);
    return api_succeeded(triton.ServerStop(server->server), problem);
}

void server_free(Server *server)
{
    if (server == NULL)
        return;
    stop_polling(server);
    if (server->server)
        api_ignore(triton.ServerDelete(server->server), "deleting the server");
    pending_models_free(server->pending_models);
    if (server->allocator)
        api_ignore(triton.ResponseAllocatorDelete(server->allocator), "deleting the allocator");
    options_free(&server->options);
    pthread_cond_destroy(&server->ending);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

bool server_is_live(Server *server)
{
    bool live = false;
    Problem problem = {0};
    bool on_response = api_succeeded(triton.ServerIsLive(server->server, &live), &problem);
    problem_clear(&problem);
    return on_response && live;
}

static bool is_forced_unready(const Server *server)
{
    return __atomic_load_n(&server->forced_unready, __ATOMIC_ACQUIRE);
}

bool server_is_ready(Server *server)
{
    if (is_forced_unready(server))
        return false;
    bool ready = false;
    Problem problem = {0};
    bool on_response = api_succeeded(triton.ServerIsReady(server->server, &ready), &problem);
    problem_clear(&problem);
    return on_response && ready;
}

bool server_was_recently_ready(Server *server)
{
    uint64_t readiness_sample = __atomic_load_n(&server->readiness_sample, __ATOMIC_RELAXED), now_ms = clock_ms();
    if (readiness_sample == 0 || now_ms - (readiness_sample >> 1) >= READINESS_MAX_AGE_MS) {
        readiness_sample = now_ms << 1 | server_is_ready(server);
        __atomic_store_n(&server->readiness_sample, readiness_sample, __ATOMIC_RELAXED);
    }
    return readiness_sample & 1 && !is_forced_unready(server);
}

void server_force_unready(Server *server, bool forced_unready)
{
    __atomic_store_n(&server->forced_unready, forced_unready, __ATOMIC_RELEASE);
}

void server_count_change(Server *server)
{
    __atomic_add_fetch(&server->changes, 1, __ATOMIC_ACQ_REL);
}

uint64_t server_changes(const Server *server)
{
    return __atomic_load_n(&server->changes, __ATOMIC_ACQUIRE);
}

bool server_version(Slice text, int64_t *version, Problem *problem)
{
    *version = -1;
    if (text.size == 0 || (slice_signed(text, version) && *version >= 0))
        return true;
    return problem_set(problem, PROBLEM_INVALID,
        "failed to get model version from specified version string '%.*s', version should be an integral value > 0",
        text.size < 100 ? (int)text.size : 100, text.start);
}

bool server_model_is_ready(Server *server, Slice model, Slice version, bool *ready, Problem *problem)
{
    ServerName name;
    int64_t number;
    *ready = false;
    if (!server_name(model, "model name", &name, problem) || !server_version(version, &number, problem))
        return false;
    size_t left = pending_models_left(server->pending_models);
    bool on_response = api_succeeded(triton.ServerModelIsReady(server->server, name.text, number, ready), problem);
    if (!on_response && (problem->kind == PROBLEM_NOT_FOUND || problem->kind == PROBLEM_UNAVAILABLE)) {
        problem_clear(problem);
        on_response = true;
    }
    if (on_response && *ready)
        return true;
    PendingKind how = pending_models_kind(server->pending_models, model);
    if (how == PENDING_STARTING) { /* A request waits for the model, but a probe gets the current state. */
        problem_clear(problem);
        return true;
    }
    /* Report ready, like a suspended model: a request waits for the model. Only the core knows the model's versions. */
    if (version.size == 0 && how == PENDING_ON_DEMAND) {
        problem_clear(problem);
        return *ready = true;
    }
    return !pending_models_request(server->pending_models, model, left, problem) && on_response;
}

bool server_name(Slice name, const char *what, ServerName *copy, Problem *problem)
{
    if (name.size > SERVER_NAME)
        return problem_set(
            problem, PROBLEM_INVALID, "the %s has %zu bytes, and at most %d are allowed", what, name.size, SERVER_NAME);
    if (!utf8_is_valid(name) || memchr(name.size ? name.start : "", '\0', name.size))
        return problem_set(problem, PROBLEM_INVALID, "the %s is not valid UTF-8, or contains a NUL", what);
    if (name.size)
        memcpy(copy->text, name.start, name.size);
    copy->text[name.size] = '\0';
    return true;
}
