/* pytriton-front: Triton's core, and its protocols.
 *
 *     pytriton-front --settings=FD            serve, until SIGTERM
 *     pytriton-front --settings=FD --check    check that all libraries that the settings name can be loaded
 *
 * SIGTERM: stop accepting, send GOAWAY, finish requests in flight within the exit timeout, end the core, exit with 0. A
 * second SIGTERM: exit immediately. Fatal errors: one line on standard error, exit code 1.
 */
#define _GNU_SOURCE
#include "background/memory.h"
#include "base/log.h"
#include "calls/sequences.h"
#include "net/listener.h"
#include "program/services.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    AT_ONCE = 143, /* as a shell reports a process ended by SIGTERM */
    RETIRED_LOOK_MS = 250,
};

static sem_t asked; /* there is something to do: one of these */
static atomic_int end_signals;
static atomic_bool is_retired, must_end;

static void on_end(int number)
{
    (void)number;
    int error = errno;
    if (atomic_fetch_add(&end_signals, 1))
        _exit(AT_ONCE);
    must_end = true;
    sem_post(&asked);
    errno = error;
}

/* Requested over the admin endpoint: repeated requests count once. */
static void end(void *unused)
{
    (void)unused;
    must_end = true;
    sem_post(&asked);
}

static void on_nothing(int number)
{
    (void)number;
}

/* Handlers instead of a mask or SIG_IGN: children of the core (stubs of its python backend) would inherit those. */
static void handle_signals(void)
{
    struct sigaction ends = {.sa_handler = on_end, .sa_flags = SA_RESTART};
    struct sigaction nothing = {.sa_handler = on_nothing, .sa_flags = SA_RESTART};
    sem_init(&asked, 0, 0);
    sigaction(SIGTERM, &ends, NULL);
    sigaction(SIGINT, &ends, NULL);
    sigaction(SIGHUP, &nothing, NULL);
    sigaction(SIGPIPE, &nothing, NULL);
}

/* A loop with its listeners. */
typedef struct {
    Task change;
    Loop *loop;
    Listener **listeners; /* one per endpoint; NULL: closed, or never opened */
    const HandoverEndpoints *endpoints;
    struct Accepting *accepting; /* of the change in progress */
} Place;

static bool start_accepting(Place *place, bool is_admin, Problem *problem)
{
    for (size_t i = 0; i < place->endpoints->count; i++) {
        const Endpoint *endpoint = &place->endpoints->all[i];
        if (endpoint->is_admin != is_admin || place->listeners[i])
            continue;
        place->listeners[i] = listener_open(place->loop, endpoint, problem);
        if (place->listeners[i] == NULL)
            return false;
    }
    return true;
}

/* The dispatcher's connections stay accepted. */
static void stop_accepting(Place *place)
{
    for (size_t i = 0; i < place->endpoints->count; i++) {
        if (place->listeners[i] && !place->endpoints->all[i].is_admin) {
            listener_close(place->listeners[i]);
            place->listeners[i] = NULL;
        }
    }
}

static bool open_place(
    Place *place, struct Accepting *accepting, const Services *services, const Settings *settings, Problem *problem)
{
    place->accepting = accepting;
    place->endpoints = services_endpoints(services);
    place->loop = loop_new(problem);
    place->listeners = calloc(place->endpoints->count + 1, sizeof *place->listeners);
    if (place->loop == NULL || place->listeners == NULL)
        return problem->kind == PROBLEM_NONE ? problem_no_memory(problem) : false;
    if (!start_accepting(place, true, problem) || (!settings->waiting && !start_accepting(place, false, problem)))
        return false;
    return loop_start(place->loop, "front", problem);
}

static void close_place(Place *place)
{
    connections_abort(place->loop); /* those of the dispatcher */
    loop_stop(place->loop);
    loop_join(place->loop);
    for (size_t i = 0; i < place->endpoints->count; i++) {
        if (place->listeners[i])
            listener_close(place->listeners[i]);
    }
    loop_free(place->loop);
    free(place->listeners);
}

/* ── accepting client connections, in all loops ───────────────────────────────────────────────────────────── */

typedef struct Accepting {
    pthread_mutex_t lock; /* one change at a time */
    Place *places;
    size_t count;
    const Services *services;
    bool accepts, is_announced;
    sem_t done; /* a loop has changed it */
    atomic_bool failed;
    Problem problem; /* of the first loop that failed */
} Accepting;

/* In each loop's thread. */
static void change_accepting(Task *task)
{
    Place *place = (Place *)((char *)task - offsetof(Place, change));
    Accepting *accepting = place->accepting;
    Problem problem = {0};
    if (!accepting->accepts) {
        stop_accepting(place);
    } else if (!start_accepting(place, false, &problem)) {
        if (atomic_exchange(&accepting->failed, true))
            problem_clear(&problem);
        else
            accepting->problem = problem;
    }
    sem_post(&accepting->done);
}

/* Not in a loop's thread: it waits for all of them. */
static bool set_accepting(Accepting *accepting, bool accepts, Problem *problem)
{
    pthread_mutex_lock(&accepting->lock);
    accepting->accepts = accepts;
    accepting->failed = false;
    for (size_t i = 0; i < accepting->count; i++)
        loop_post(accepting->places[i].loop, &accepting->places[i].change);
    for (size_t i = 0; i < accepting->count; i++)
        while (sem_wait(&accepting->done) != 0)
            ;
    bool failed = accepting->failed;
    if (failed)
        *problem = accepting->problem;
    accepting->problem = (Problem){0};
    if (accepts && !failed && !accepting->is_announced) {
        accepting->is_announced = true;
        services_announce(accepting->services);
    }
    pthread_mutex_unlock(&accepting->lock);
    return !failed;
}

/* ── the dispatcher's requests, in jobs ───────────────────────────────────────────────────────────────────── */

static bool change_accepting_for(void *user, bool accepts, Problem *problem)
{
    if (accepts && (must_end || is_retired))
        return problem_set(problem, PROBLEM_UNAVAILABLE, "this server ends, and accepts no more connections");
    return set_accepting(user, accepts, problem);
}

static bool retire(void *user, const char *successor, bool force, Problem *problem)
{
    Accepting *accepting = user;
    if (is_retired)
        return problem_set(problem, PROBLEM_INVALID, "this server retires already");
    if (!set_accepting(accepting, false, problem))
        return false;
    if (!handover_begin(services_endpoints(accepting->services), successor, problem))
        return false;
    uint64_t sequences = sequences_close(); /* last: nothing reopens them */
    if (sequences && !force)
        return problem_set(problem, PROBLEM_EXISTS, "%llu sequences are in progress", (unsigned long long)sequences);
    is_retired = true;
    log_info(
        "another server takes this one's place: %llu connections are open", (unsigned long long)connections_count());
    for (size_t i = 0; i < accepting->count; i++)
        connections_retire(accepting->places[i].loop);
    sem_post(&asked);
    return true;
}

static void leave(void *user)
{
    Accepting *accepting = user;
    Problem ignored = {0};
    set_accepting(accepting, false, &ignored);
    problem_clear(&ignored);
    awaited_end(services_server(accepting->services)->awaited);
    for (size_t i = 0; i < accepting->count; i++)
        connections_drain(accepting->places[i].loop);
    connections_wait(services_server(accepting->services)->options.exit_timeout_s * 1000ull);
}

static void tell_ready(int fd)
{
    if (fd < 0)
        return;
    if (write(fd, "1", 1) != 1)
        log_warning("cannot report that connections are accepted: %s", strerror(errno));
    close(fd);
}

/* Connections end within the exit timeout; the remaining ones are aborted, and their requests cancelled. */
static void drain(Accepting *accepting, Server *server)
{
    Problem ignored = {0};
    server_hold(server, true); /* readiness probes get "not ready" */
    awaited_end(server->awaited); /* models will not be loaded any more: end all waits */
    set_accepting(accepting, false, &ignored);
    problem_clear(&ignored);
    for (size_t i = 0; i < accepting->count; i++)
        connections_drain(accepting->places[i].loop);
    log_info("the server ends: %llu connections are open", (unsigned long long)connections_count());
    if (connections_wait(server->options.exit_timeout_s * 1000ull))
        return;
    log_warning("%llu connections are ended: exit-timeout-secs are over", (unsigned long long)connections_count());
    for (size_t i = 0; i < accepting->count; i++)
        connections_abort(accepting->places[i].loop);
}

static int fail(Problem *problem)
{
    log_error("%s", problem_text(problem));
    problem_clear(problem);
    return 1;
}

/* Wait for the request to end; a retired process ends with its last connection. */
static void wait_for_end(void)
{
    while (!must_end) {
        if (is_retired && connections_wait(RETIRED_LOOK_MS))
            return;
        if (!is_retired)
            sem_wait(&asked);
    }
}

static int serve(const Settings *settings)
{
    static Accepting accepting = {
        .lock = PTHREAD_MUTEX_INITIALIZER}; /* admin requests may arrive until the process ends */
    static const ServerControl control = {end, change_accepting_for, retire, leave, &accepting};
    Problem problem = {0};
    sem_init(&accepting.done, 0, 0);
    accepting.services = services_start(settings, &control, &problem);
    Services *services = (Services *)accepting.services;
    accepting.places = services ? calloc(settings->loops, sizeof *accepting.places) : NULL;
    if (accepting.places == NULL)
        return fail(&problem);
    for (size_t i = 0; i < settings->loops; i++)
        accepting.places[i].change.run = change_accepting;
    accepting.count = settings->loops;
    for (size_t i = 0; i < settings->loops; i++) {
        if (!open_place(&accepting.places[i], &accepting, services, settings, &problem))
            return fail(&problem); /* NOLINT(clang-analyzer-unix.Malloc): the process's end takes the rest along */
    }
    if (!settings->waiting) {
        accepting.is_announced = true;
        services_announce(services);
    }
    tell_ready(settings->ready_fd);
    wait_for_end();
    drain(&accepting, services_server(services));
    services_stop(services);
    for (size_t i = 0; i < settings->loops; i++)
        close_place(&accepting.places[i]);
    free(accepting.places);
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
    memory_prepare();
    handle_signals();
    if (!settings_read(fd, &settings, &problem) || !services_load(&settings, &problem))
        return fail(&problem);
    return check ? 0 : serve(&settings);
}
