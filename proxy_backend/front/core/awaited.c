#define _GNU_SOURCE
#include "core/awaited.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

typedef enum { ABSENT, NOTIFIED, SETTLED } State;

struct Awaited {
    char **names; /* sorted */
    bool *soon; /* of each: it is loaded without a request */
    State *states; /* of each; guarded by the lock, like everything below except `left` */
    size_t count;
    size_t left; /* how many are not settled */
    int fd;
    uint64_t wait_ms, most;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    AwaitedBy *first, **last; /* ordered by deadline */
    size_t waiting;
    pthread_t thread; /* resumes waiters; started with the first of them */
    bool runs, ends;
};

static int by_name(const void *one, const void *other)
{
    return strcmp(*(char *const *)one, *(char *const *)other);
}

/* Returns its index; `count`: none. */
static size_t find(const Awaited *awaited, Slice model)
{
    size_t first = 0, end = awaited->count;
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        const char *name = awaited->names[middle];
        size_t size = strlen(name);
        int order = memcmp(name, model.start, size < model.size ? size : model.size);
        if (order == 0 && size == model.size)
            return middle;
        if (order < 0 || (order == 0 && size < model.size))
            first = middle + 1;
        else
            end = middle;
    }
    return awaited->count;
}

Awaited *awaited_new(AwaitedSettings *settings, Problem *problem)
{
    pthread_condattr_t attributes;
    Awaited *awaited = calloc(1, sizeof *awaited);
    const AwaitedNames names = settings->names;
    State *states = calloc(names.count + 1, sizeof *states);
    bool *soon = calloc(names.count + 1, sizeof *soon);
    if (awaited == NULL || states == NULL || soon == NULL || pthread_condattr_init(&attributes) != 0) {
        free(awaited);
        free(states);
        free(soon);
        problem_no_memory(problem);
        return NULL;
    }
    if (names.count)
        qsort(names.all, names.count, sizeof *names.all, by_name);
    *awaited = (Awaited){.names = names.all,
        .soon = soon,
        .states = states,
        .count = names.count,
        .left = names.count,
        .fd = settings->fd,
        .wait_ms = settings->wait_s * 1000,
        .most = settings->most};
    /* An unknown name has the index behind them. */
    for (size_t i = 0; i < settings->coming.count; i++)
        soon[find(awaited, slice_of(settings->coming.all[i]))] = true;
    awaited->last = &awaited->first;
    pthread_mutex_init(&awaited->lock, NULL);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&awaited->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return awaited;
}

/* ── waiters ──────────────────────────────────────────────────────────────────────────────────────── */

static bool say_later(const Awaited *awaited, size_t model, ProblemKind kind, Problem *problem)
{
    problem_set(problem, kind, "model '%s' is not loaded yet: try again later", awaited->names[model]);
    problem->awaited = model;
    return true;
}

/* Remove the next waiter whose time is over from the list. With the lock held. */
static AwaitedBy *take_due(Awaited *awaited, uint64_t now_ms)
{
    for (AwaitedBy **at = &awaited->first; *at; at = &(*at)->next) {
        AwaitedBy *waiter = *at;
        if (awaited->states[waiter->model] != SETTLED && waiter->until_ms > now_ms && !awaited->ends)
            continue;
        *at = waiter->next;
        if (waiter->next == NULL)
            awaited->last = at;
        awaited->waiting--;
        return waiter;
    }
    return NULL;
}

/* With the lock held, but not while the waiter continues. */
static void go_on(Awaited *awaited, AwaitedBy *waiter)
{
    bool came = awaited->states[waiter->model] == SETTLED && !awaited->ends;
    Problem problem = {0};
    pthread_mutex_unlock(&awaited->lock);
    if (!came)
        say_later(awaited, waiter->model, PROBLEM_UNAVAILABLE, &problem);
    waiter->then(waiter, &problem);
    problem_clear(&problem);
    pthread_mutex_lock(&awaited->lock);
}

/* With the lock held: wait until something has changed, or a waiter's time is over. */
static void rest(Awaited *awaited)
{
    if (awaited->first == NULL) {
        pthread_cond_wait(&awaited->changed, &awaited->lock);
        return;
    }
    uint64_t until_ms = awaited->first->until_ms;
    struct timespec until = {(time_t)(until_ms / 1000), (long)(until_ms % 1000) * 1000000};
    pthread_cond_timedwait(&awaited->changed, &awaited->lock, &until);
}

static void *have_them_go_on(void *argument)
{
    Awaited *awaited = argument;
    pthread_mutex_lock(&awaited->lock);
    for (;;) {
        AwaitedBy *waiter = take_due(awaited, clock_ms());
        if (waiter)
            go_on(awaited, waiter);
        else if (awaited->ends)
            break;
        else
            rest(awaited);
    }
    pthread_mutex_unlock(&awaited->lock);
    return NULL;
}

bool awaited_wait(Awaited *awaited, Problem *problem, AwaitedBy *waiter, AwaitedThen *then)
{
    if (problem->kind != PROBLEM_AWAITED)
        return false;
    pthread_mutex_lock(&awaited->lock);
    bool may = !awaited->ends && awaited->waiting < awaited->most;
    if (may && !awaited->runs)
        may = awaited->runs = pthread_create(&awaited->thread, NULL, have_them_go_on, awaited) == 0;
    if (may) {
        *waiter = (AwaitedBy){.model = problem->awaited, .until_ms = clock_ms() + awaited->wait_ms, .then = then};
        problem_clear(problem); /* it may be part of the waiting object, which may be freed soon */
        *awaited->last = waiter;
        awaited->last = &waiter->next;
        awaited->waiting++;
        pthread_cond_signal(&awaited->changed);
    }
    pthread_mutex_unlock(&awaited->lock);
    return may;
}

void awaited_end(Awaited *awaited)
{
    if (awaited == NULL)
        return;
    pthread_mutex_lock(&awaited->lock);
    awaited->ends = true;
    bool runs = awaited->runs;
    awaited->runs = false;
    pthread_cond_signal(&awaited->changed);
    pthread_mutex_unlock(&awaited->lock);
    if (runs)
        pthread_join(awaited->thread, NULL);
}

void awaited_free(Awaited *awaited)
{
    if (awaited == NULL)
        return;
    awaited_end(awaited);
    pthread_cond_destroy(&awaited->changed);
    pthread_mutex_destroy(&awaited->lock);
    free(awaited->states);
    free(awaited->soon);
    free(awaited);
}

/* ── models ───────────────────────────────────────────────────────────────────────────────────────── */

/* A line is written completely, or not at all. */
static bool tell(const Awaited *awaited, const char *name)
{
    char line[PIPE_BUF];
    size_t size = strlen(name);
    if (size + 1 > sizeof line)
        return false;
    memcpy(line, name, size);
    line[size] = '\n';
    ssize_t written;
    do {
        written = write(awaited->fd, line, size + 1);
    } while (written < 0 && errno == EINTR);
    if (written < 0)
        log_warning("cannot notify the dispatcher that model '%s' was requested: %s", name, strerror(errno));
    return written > 0;
}

size_t awaited_left(const Awaited *awaited)
{
    return awaited ? __atomic_load_n(&awaited->left, __ATOMIC_ACQUIRE) : 0;
}

AwaitedHow awaited_how(Awaited *awaited, Slice model)
{
    if (model.size == 0 || awaited_left(awaited) == 0)
        return AWAITED_NOT;
    size_t found = find(awaited, model);
    if (found == awaited->count)
        return AWAITED_NOT;
    pthread_mutex_lock(&awaited->lock);
    bool comes = awaited->states[found] != SETTLED && !awaited->ends;
    pthread_mutex_unlock(&awaited->lock);
    return !comes ? AWAITED_NOT : awaited->soon[found] ? AWAITED_SOON : AWAITED_WHEN_ASKED;
}

bool awaited_asked(Awaited *awaited, Slice model, size_t left, Problem *problem)
{
    if (model.size == 0 || left == 0)
        return false;
    size_t found = find(awaited, model);
    if (found == awaited->count)
        return false;
    pthread_mutex_lock(&awaited->lock);
    State state = awaited->states[found];
    if (state == ABSENT && tell(awaited, awaited->names[found]))
        state = awaited->states[found] = NOTIFIED;
    /* A model that was loaded since the core was asked may be this one. There are at most as many as models, so
     * retries end.
     */
    bool unknown = state == SETTLED && awaited->left == left;
    pthread_mutex_unlock(&awaited->lock);
    return !unknown && say_later(awaited, found, state == ABSENT ? PROBLEM_UNAVAILABLE : PROBLEM_AWAITED, problem);
}

void awaited_settled(Awaited *awaited, Slice model)
{
    if (awaited == NULL || model.size == 0)
        return;
    size_t found = find(awaited, model);
    if (found == awaited->count)
        return;
    pthread_mutex_lock(&awaited->lock);
    if (awaited->states[found] != SETTLED) {
        awaited->states[found] = SETTLED;
        __atomic_sub_fetch(&awaited->left, 1, __ATOMIC_RELEASE);
        pthread_cond_signal(&awaited->changed);
    }
    pthread_mutex_unlock(&awaited->lock);
}
