#define _GNU_SOURCE
#include "core/pending_models.h"

#include "common/clock.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef enum { ABSENT, NOTIFIED, SETTLED } PendingState;

struct PendingModels {
    char **names; /* names of the models, sorted */
    bool *is_starting; /* for each model: it is being loaded without a request */
    PendingState *states; /* for each model; guarded by the lock, like all fields below except `left` */
    size_t count;
    size_t left; /* number of models that are not settled */
    int fd;
    uint64_t wait_ms, max_waiters;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    ModelWaiter *first, **last; /* sorted by deadline */
    size_t waiting;
    pthread_t thread; /* resumes waiters; started for the first one */
    bool is_running, is_stopping;
};

static int by_name(const void *one, const void *other)
{
    return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Returns the index of a model, or `count` if it is unknown. */
static size_t find_model(const PendingModels *pending, Slice model)
{
    size_t first = 0, end = pending->count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        const char *name = pending->names[middle];
        size_t size = strlen(name);
        int order = memcmp(name, model.start, size < model.size ? size : model.size);
        if (order == 0 && size == model.size)
            return middle;
        if (order < 0 || (order == 0 && size < model.size))
            first = middle + 1;
        else
            end = middle;
    }
    return pending->count;
}

PendingModels *pending_models_new(PendingModelsSettings *settings, Problem *problem)
{
    pthread_condattr_t attributes;
    PendingModels *pending = calloc(1, sizeof *pending);
    const PendingModelNames names = settings->names;
    PendingState *states = calloc(names.count + 1, sizeof *states);
    bool *is_starting = calloc(names.count + 1, sizeof *is_starting);
    if (pending == NULL || states == NULL || is_starting == NULL || pthread_condattr_init(&attributes) != 0) {
        free(pending);
        free(states);
        free(is_starting);
        problem_no_memory(problem);
        return NULL;
    }
    if (names.count)
        qsort(names.all, names.count, sizeof *names.all, by_name);
    *pending = (PendingModels){.names = names.all,
        .is_starting = is_starting,
        .states = states,
        .count = names.count,
        .left = names.count,
        .fd = settings->fd,
        .wait_ms = settings->wait_s * 1000,
        .max_waiters = settings->max_waiters};
    /* An unknown name gets the index `count`. */
    for (size_t i = 0; i < settings->starting.count; i++)
        is_starting[find_model(pending, slice_of(settings->starting.all[i]))] = true;
    pending->last = &pending->first;
    pthread_mutex_init(&pending->lock, NULL);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&pending->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return pending;
}

/* ── waiters ──────────────────────────────────────────────────────────────────────────────────────── */

static bool set_retry_problem(const PendingModels *pending, size_t model, ProblemKind kind, Problem *problem)
{
    problem_set(problem, kind, "model '%s' is not loaded yet: try again later", pending->names[model]);
    problem->pending_model = model;
    return true;
}

/* Remove and return the next waiter whose deadline has passed. The caller holds the lock. */
static ModelWaiter *take_due(PendingModels *pending, uint64_t now_ms)
{
    for (ModelWaiter **at = &pending->first; *at; at = &(*at)->next) {
        ModelWaiter *waiter = *at;
        if (pending->states[waiter->model] != SETTLED && waiter->until_ms > now_ms && !pending->is_stopping)
            continue;
        *at = waiter->next;
        if (waiter->next == NULL)
            pending->last = at;
        pending->waiting--;
        return waiter;
    }
    return NULL;
}

/* Resume a waiter. The caller holds the lock, which is released while the waiter runs. */
static void resume(PendingModels *pending, ModelWaiter *waiter)
{
    bool is_loaded = pending->states[waiter->model] == SETTLED && !pending->is_stopping;
    Problem problem = {0};
    pthread_mutex_unlock(&pending->lock);
    if (!is_loaded)
        set_retry_problem(pending, waiter->model, PROBLEM_UNAVAILABLE, &problem);
    waiter->then(waiter, &problem);
    problem_clear(&problem);
    pthread_mutex_lock(&pending->lock);
}

/* Wait until something changes, or the first deadline passes. The caller holds the lock. */
static void wait_for_change(PendingModels *pending)
{
    if (pending->first == NULL) {
        pthread_cond_wait(&pending->changed, &pending->lock);
        return;
    }
    uint64_t until_ms = pending->first->until_ms;
    struct timespec until = {(time_t)(until_ms / 1000), (long)(until_ms % 1000) * 1000000};
    pthread_cond_timedwait(&pending->changed, &pending->lock, &until);
}

static void *resume_waiters(void *argument)
{
    PendingModels *pending = argument;
    pthread_mutex_lock(&pending->lock);
    for (;;) {
        ModelWaiter *waiter = take_due(pending, clock_ms());
        if (waiter)
            resume(pending, waiter);
        else if (pending->is_stopping)
            break;
        else
            wait_for_change(pending);
    }
    pthread_mutex_unlock(&pending->lock);
    return NULL;
}

bool pending_models_wait(PendingModels *pending, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then)
{
    if (problem->kind != PROBLEM_MODEL_PENDING)
        return false;
    pthread_mutex_lock(&pending->lock);
    bool may = !pending->is_stopping && pending->waiting < pending->max_waiters;
    if (may && !pending->is_running)
        may = pending->is_running = pthread_create(&pending->thread, NULL, resume_waiters, pending) == 0;
    if (may) {
        *waiter =
            (ModelWaiter){.model = problem->pending_model, .until_ms = clock_ms() + pending->wait_ms, .then = then};
        /* Clear the problem first: it may be part of the waiting object, which may be freed soon. */
        problem_clear(problem);
        *pending->last = waiter;
        pending->last = &waiter->next;
        pending->waiting++;
        pthread_cond_signal(&pending->changed);
    }
    pthread_mutex_unlock(&pending->lock);
    return may;
}

void pending_models_stop(PendingModels *pending)
{
    if (pending == NULL)
        return;
    pthread_mutex_lock(&pending->lock);
    pending->is_stopping = true;
    bool is_running = pending->is_running;
    pending->is_running = false;
    pthread_cond_signal(&pending->changed);
    pthread_mutex_unlock(&pending->lock);
    if (is_running)
        pthread_join(pending->thread, NULL);
}

void pending_models_free(PendingModels *pending)
{
    if (pending == NULL)
        return;
    pending_models_stop(pending);
    pthread_cond_destroy(&pending->changed);
    pthread_mutex_destroy(&pending->lock);
    free(pending->states);
    free(pending->is_starting);
    free(pending);
}

/* ── models ───────────────────────────────────────────────────────────────────────────────────────── */

/* Write a model's name to the dispatcher's pipe, in one piece. Returns false on failure. */
static bool notify_dispatcher(const PendingModels *pending, const char *name)
{
    char line[PIPE_BUF];
    size_t size = strlen(name);
    if (size + 1 > sizeof line)
        return false;
    memcpy(line, name, size);
    line[size] = '\n';
    ssize_t written;
    do {
        written = write(pending->fd, line, size + 1);
    } while (written < 0 && errno == EINTR);
    if (written < 0)
        log_warning("cannot notify the dispatcher that model '%s' was requested: %s", name, strerror(errno));
    return written > 0;
}

size_t pending_models_left(const PendingModels *pending)
{
    return pending ? __atomic_load_n(&pending->left, __ATOMIC_ACQUIRE) : 0;
}

PendingKind pending_models_kind(PendingModels *pending, Slice model)
{
    if (model.size == 0 || pending_models_left(pending) == 0)
        return PENDING_NOT;
    size_t found = find_model(pending, model);
    if (found == pending->count)
        return PENDING_NOT;
    pthread_mutex_lock(&pending->lock);
    bool is_pending = pending->states[found] != SETTLED && !pending->is_stopping;
    pthread_mutex_unlock(&pending->lock);
    return !is_pending ? PENDING_NOT : pending->is_starting[found] ? PENDING_STARTING : PENDING_ON_DEMAND;
}

bool pending_models_request(PendingModels *pending, Slice model, size_t left, Problem *problem)
{
    if (model.size == 0 || left == 0)
        return false;
    size_t found = find_model(pending, model);
    if (found == pending->count)
        return false;
    pthread_mutex_lock(&pending->lock);
    PendingState state = pending->states[found];
    if (state == ABSENT && notify_dispatcher(pending, pending->names[found]))
        state = pending->states[found] = NOTIFIED;
    /* A model that was settled since the core was asked may be this one. Each model is settled once, so retries end. */
    bool unknown = state == SETTLED && pending->left == left;
    pthread_mutex_unlock(&pending->lock);
    return !unknown &&
        set_retry_problem(pending, found, state == ABSENT ? PROBLEM_UNAVAILABLE : PROBLEM_MODEL_PENDING, problem);
}

void pending_models_settle(PendingModels *pending, Slice model)
{
    if (pending == NULL || model.size == 0)
        return;
    size_t found = find_model(pending, model);
    if (found == pending->count)
        return;
    pthread_mutex_lock(&pending->lock);
    if (pending->states[found] != SETTLED) {
        pending->states[found] = SETTLED;
        __atomic_sub_fetch(&pending->left, 1, __ATOMIC_RELEASE);
        pthread_cond_signal(&pending->changed);
    }
    pthread_mutex_unlock(&pending->lock);
}
