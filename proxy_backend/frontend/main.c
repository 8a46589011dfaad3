/* pytriton-frontend: serves KServe's protocols in front of Triton's core.
 *
 *     pytriton-frontend --settings=FD            serve until SIGTERM
 *     pytriton-frontend --settings=FD --check    check that all libraries named in the settings can be loaded
 *
 * On SIGTERM: stop accepting, send GOAWAY, finish requests in flight within the exit timeout, stop the core, and exit
 * with 0. On a second SIGTERM: exit immediately. On a fatal error: write one line to standard error, and exit with 1.
 */
#define _GNU_SOURCE
#include "thread_pool/memory_trim.h"
#include "base/log.h"
#include "calls/sequences.h"
#include "net/listener.h"
#include "startup/services.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    EXIT_SIGTERM = 143, /* what a shell reports for a process that SIGTERM has ended */
    RETIRED_CHECK_INTERVAL_MS = 250,
};

static sem_t work_pending; /* posted when one of these is set */
static atomic_int end_signals;
static atomic_bool is_retired, must_exit;

static void on_terminate(int number)
{
    (void)number;
    int error = errno;
    if (atomic_fetch_add(&end_signals, 1))
        _exit(EXIT_SIGTERM);
    must_exit = true;
    sem_post(&work_pending);
    errno = error;
}

/* Called for a request through the admin endpoint. Repeated requests count once. */
static void request_exit(void *unused)
{
    (void)unused;
    must_exit = true;
    sem_post(&work_pending);
}

static void on_ignored(int number)
{
    (void)number;
}

/* Use handlers instead of a mask or SIG_IGN, which children of the core (stubs of its python backend) would inherit. */
static void handle_signals(void)
{
    struct sigaction ends = {.sa_handler = on_terminate, .sa_flags = SA_RESTART};
    struct sigaction nothing = {.sa_handler = on_ignored, .sa_flags = SA_RESTART};
    sem_init(&work_pending, 0, 0);
    sigaction(SIGTERM, &ends, NULL);
    sigaction(SIGINT, &ends, NULL);
    sigaction(SIGHUP, &nothing, NULL);
    sigaction(SIGPIPE, &nothing, NULL);
}

/* An event loop and its listeners. */
typedef struct {
    Task change;
    Loop *loop;
    Listener **listeners; /* one for each endpoint; NULL if it is closed, or was never opened */
    const HandoverEndpoints *endpoints;
    struct AcceptState *accept_state; /* for the change in progress */
} LoopListeners;

static bool start_accepting(LoopListeners *loop_listeners, bool is_admin, Problem *problem)
{
    for (size_t i = 0; i < loop_listeners->endpoints->count; i++) {
        const Endpoint *endpoint = &loop_listeners->endpoints->all[i];
        if (endpoint->is_admin != is_admin || loop_listeners->listeners[i])
            continue;
        loop_listeners->listeners[i] = listener_open(loop_listeners->loop, endpoint, problem);
        if (loop_listeners->listeners[i] == NULL)
            return false;
    }
    return true;
}

/* Stop accepting connections, except the dispatcher's. */
static void stop_accepting(LoopListeners *loop_listeners)
{
    for (size_t i = 0; i < loop_listeners->endpoints->count; i++) {
        if (loop_listeners->listeners[i] && !loop_listeners->endpoints->all[i].is_admin) {
            listener_close(loop_listeners->listeners[i]);
            loop_listeners->listeners[i] = NULL;
        }
    }
}

static bool open_loop(LoopListeners *loop_listeners, struct AcceptState *accept_state, const Services *services,
    const Settings *settings, Problem *problem)
{
    loop_listeners->accept_state = accept_state;
    loop_listeners->endpoints = services_endpoints(services);
    loop_listeners->loop = loop_new(problem);
    loop_listeners->listeners = calloc(loop_listeners->endpoints->count + 1, sizeof *loop_listeners->listeners);
    if (loop_listeners->loop == NULL || loop_listeners->listeners == NULL)
        return problem->kind == PROBLEM_NONE ? problem_no_memory(problem) : false;
    if (!start_accepting(loop_listeners, true, problem) ||
        (!settings->not_accepting && !start_accepting(loop_listeners, false, problem)))
        return false;
    return loop_start(loop_listeners->loop, "frontend", problem);
}

static void close_loop(LoopListeners *loop_listeners)
{
    connections_abort(loop_listeners->loop); /* Ends the dispatcher's connections. */
    loop_stop(loop_listeners->loop);
    loop_join(loop_listeners->loop);
    for (size_t i = 0; i < loop_listeners->endpoints->count; i++) {
        if (loop_listeners->listeners[i])
            listener_close(loop_listeners->listeners[i]);
    }
    loop_free(loop_listeners->loop);
    free(loop_listeners->listeners);
}

/* ── accepting client connections, in all loops ───────────────────────────────────────────────────────────── */

typedef struct AcceptState {
    pthread_mutex_t lock; /* guards the fields below, so that there is one change at a time */
    LoopListeners *loops;
    size_t count;
    const Services *services;
    bool accepts, is_announced;
    sem_t done; /* posted when a loop has made the change */
    atomic_bool failed;
    Problem problem; /* of the first loop in which it failed */
} AcceptState;

/* Make the change. Runs in each loop's thread. */
static void apply_accepting(Task *task)
{
    LoopListeners *loop_listeners = (LoopListeners *)((char *)task - offsetof(LoopListeners, change));
    AcceptState *accept_state = loop_listeners->accept_state;
    Problem problem = {0};
    if (!accept_state->accepts) {
        stop_accepting(loop_listeners);
    } else if (!start_accepting(loop_listeners, false, &problem)) {
        if (atomic_exchange(&accept_state->failed, true))
            problem_clear(&problem);
        else
            accept_state->problem = problem;
    }
    sem_post(&accept_state->done);
}

/* Make the change in all loops, and wait for it. Must not be called in a loop's thread. */
static bool set_accepting(AcceptState *accept_state, bool accepts, Problem *problem)
{
    pthread_mutex_lock(&accept_state->lock);
    accept_state->accepts = accepts;
    accept_state->failed = false;
    for (size_t i = 0; i < accept_state->count; i++)
        loop_post(accept_state->loops[i].loop, &accept_state->loops[i].change);
    for (size_t i = 0; i < accept_state->count; i++)
        while (sem_wait(&accept_state->done) != 0)
            ;
    bool failed = accept_state->failed;
    if (failed)
        *problem = accept_state->problem;
    accept_state->problem = (Problem){0};
    if (accepts && !failed && !accept_state->is_announced) {
        accept_state->is_announced = true;
        services_announce(accept_state->services);
    }
    pthread_mutex_unlock(&accept_state->lock);
    return !failed;
}

/* ── the dispatcher's requests, in the thread pool ───────────────────────────────────────────────────────────────────── */

static bool handle_accept_request(void *user, bool accepts, Problem *problem)
{
    if (accepts && (must_exit || is_retired))
        return problem_set(
            problem, PROBLEM_UNAVAILABLE, "this server is shutting down and accepts no more connections");
    return set_accepting(user, accepts, problem);
}

static bool retire(void *user, const char *successor, bool force, Problem *problem)
{
    AcceptState *accept_state = user;
    if (is_retired)
        return problem_set(problem, PROBLEM_INVALID, "this server is already retiring");
    if (!set_accepting(accept_state, false, problem))
        return false;
    if (!handover_begin(services_endpoints(accept_state->services), successor, problem))
        return false;
    uint64_t sequences = sequences_close(); /* Do this last, because it cannot be undone. */
    if (sequences && !force)
        return problem_set(problem, PROBLEM_EXISTS, "%llu sequences are in progress", (unsigned long long)sequences);
    is_retired = true;
    log_info(
        "another server is replacing this one: %llu connections are open", (unsigned long long)connections_count());
    for (size_t i = 0; i < accept_state->count; i++)
        connections_retire(accept_state->loops[i].loop);
    sem_post(&work_pending);
    return true;
}

static void leave(void *user)
{
    AcceptState *accept_state = user;
    Problem ignored = {0};
    set_accepting(accept_state, false, &ignored);
    problem_clear(&ignored);
    pending_models_stop(services_server(accept_state->services)->pending_models);
    for (size_t i = 0; i < accept_state->count; i++)
        connections_drain(accept_state->loops[i].loop);
    connections_wait(services_server(accept_state->services)->options.exit_timeout_s * 1000ull);
}

static void report_ready(int fd)
{
    if (fd < 0)
        return;
    if (write(fd, "1", 1) != 1)
        log_warning("cannot report that the server accepts connections: %s", strerror(errno));
    close(fd);
}

/* End all connections within the exit timeout. Then abort the remaining ones, and cancel their requests. */
static void drain(AcceptState *accept_state, Server *server)
{
    Problem ignored = {0};
    server_force_unready(server, true); /* Answer readiness probes with "not ready". */
    pending_models_stop(server->pending_models); /* End all waits, because no more models will be loaded. */
    set_accepting(accept_state, false, &ignored);
    problem_clear(&ignored);
    for (size_t i = 0; i < accept_state->count; i++)
        connections_drain(accept_state->loops[i].loop);
    log_info("shutting down: %llu connections are open", (unsigned long long)connections_count());
    if (connections_wait(server->options.exit_timeout_s * 1000ull))
        return;
    log_warning("closing %llu connections: exit-timeout-secs have passed", (unsigned long long)connections_count());
    for (size_t i = 0; i < accept_state->count; i++)
        connections_abort(accept_state->loops[i].loop);
}

static int fail(Problem *problem)
{
    log_error("%s", problem_text(problem));
    problem_clear(problem);
    return 1;
}

/* Wait until the process has to end. A retired process ends after its last connection. */
static void wait_for_exit(void)
{
    while (!must_exit) {
        if (is_retired && connections_wait(RETIRED_CHECK_INTERVAL_MS))
            return;
        if (!is_retired)
            sem_wait(&work_pending);
    }
}

static int serve(const Settings *settings)
{
    static AcceptState accept_state = {
        .lock = PTHREAD_MUTEX_INITIALIZER}; /* Static, because admin requests may arrive until the process ends. */
    static const ServerControl control = {request_exit, handle_accept_request, retire, leave, &accept_state};
    Problem problem = {0};
    sem_init(&accept_state.done, 0, 0);
    accept_state.services = services_start(settings, &control, &problem);
    Services *services = (Services *)accept_state.services;
    accept_state.loops = services ? calloc(settings->loops, sizeof *accept_state.loops) : NULL;
    if (accept_state.loops == NULL)
        return fail(&problem);
    for (size_t i = 0; i < settings->loops; i++)
        accept_state.loops[i].change.run = apply_accepting;
    accept_state.count = settings->loops;
    for (size_t i = 0; i < settings->loops; i++) {
        if (!open_loop(&accept_state.loops[i], &accept_state, services, settings, &problem))
            return fail(&problem); /* NOLINT(clang-analyzer-unix.Malloc): the end of the process frees the rest */
    }
    if (!settings->not_accepting) {
        accept_state.is_announced = true;
        services_announce(services);
    }
    report_ready(settings->ready_fd);
    wait_for_exit();
    drain(&accept_state, services_server(services));
    services_stop(services);
    for (size_t i = 0; i < settings->loops; i++)
        close_loop(&accept_state.loops[i]);
    free(accept_state.loops);
    services_free(services);
    return 0;
}

int main(int count, char **arguments)
{
    static Settings settings;
    Problem problem = {0};
    bool check = false;
    int fd = -1;
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "--settings=", 11) == 0)
            fd = (int)strtol(arguments[i] + 11, NULL, 10);
        else if (strcmp(arguments[i], "--check") == 0)
            check = true;
        else
            fd = -1;
    }
    if (fd < 0) {
        fprintf(stderr, "usage: %s --settings=FD [--check]\n", arguments[0]);
        return 2;
    }
    memory_trim_configure();
    handle_signals();
    if (!settings_read(fd, &settings, &problem) || !services_load(&settings, &problem))
        return fail(&problem);
    return check ? 0 : serve(&settings);
}
