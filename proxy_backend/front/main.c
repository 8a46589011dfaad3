/* pytriton-front: Triton's core, and its protocols.
 *
 *     pytriton-front --settings=FD            serve, until SIGTERM
 *     pytriton-front --settings=FD --check    see whether all libraries can be loaded that the settings name
 *
 * SIGUSR1: with "waiting" in the settings, accept connections of clients from now on: another process has until then.
 * SIGTERM: accept no more, say goodbye, answer what is there within the exit timeout, end the core, exit 0. A second one: end at once. What it cannot go on
 * with is one line on standard error, and the exit code 1.
 */
#define _GNU_SOURCE
#include "background/memory.h"
#include "base/log.h"
#include "net/listener.h"
#include "program/services.h"

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { AT_ONCE = 143 }; /* as a shell tells of a process that SIGTERM has ended */

static sem_t asked; /* something is to be done: one of these */
static atomic_int end_signals;
static atomic_bool may_accept, must_end;

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

static void on_accept(int number)
{
    (void)number;
    int error = errno;
    may_accept = true;
    sem_post(&asked);
    errno = error;
}

/* Asked over the admin endpoint: again and again is no more than once. */
static void on_drain(void *unused)
{
    (void)unused;
    must_end = true;
    sem_post(&asked);
}

static void on_nothing(int number)
{
    (void)number;
}

/* Functions instead of a mask or SIG_IGN: what the core starts (stubs of its python backend) would inherit these. */
static void handle_signals(void)
{
    struct sigaction end = {.sa_handler = on_end, .sa_flags = SA_RESTART};
    struct sigaction accept = {.sa_handler = on_accept, .sa_flags = SA_RESTART};
    struct sigaction nothing = {.sa_handler = on_nothing, .sa_flags = SA_RESTART};
    sem_init(&asked, 0, 0);
    sigaction(SIGUSR1, &accept, NULL);
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGHUP, &nothing, NULL);
    sigaction(SIGPIPE, &nothing, NULL);
}

typedef struct {
    Task close;
    Loop *loop;
    Listener **listeners; /* one for each endpoint; NULL: closed, or never opened */
    const Endpoint *endpoints;
    size_t count;
} Place;

/* The dispatcher may go on asking. */
static void stop_accepting(Task *task)
{
    Place *place = (Place *)((char *)task - offsetof(Place, close));
    for (size_t i = 0; i < place->count; i++) {
        if (place->listeners[i] && !place->endpoints[i].is_admin) {
            listener_close(place->listeners[i]);
            place->listeners[i] = NULL;
        }
    }
}

/* Listen on the endpoints of clients, or of the dispatcher. */
static bool start_accepting(Place *place, bool is_admin, Problem *problem)
{
    for (size_t i = 0; i < place->count; i++) {
        if (place->endpoints[i].is_admin != is_admin)
            continue;
        place->listeners[i] = listener_open(place->loop, &place->endpoints[i], problem);
        if (place->listeners[i] == NULL)
            return false;
    }
    return true;
}

static bool open_place(Place *place, const Services *services, const Settings *settings, Problem *problem)
{
    place->close.run = stop_accepting;
    place->endpoints = services_endpoints(services);
    place->count = settings->listen_count;
    place->loop = loop_new(problem);
    place->listeners = calloc(place->count + 1, sizeof *place->listeners);
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
    for (size_t i = 0; i < place->count; i++) {
        if (place->listeners[i])
            listener_close(place->listeners[i]);
    }
    loop_free(place->loop);
    free(place->listeners);
}

static void tell_ready(int fd)
{
    if (fd < 0)
        return;
    if (write(fd, "1", 1) != 1)
        log_warning("nobody can be told that connections are accepted: %s", strerror(errno));
    close(fd);
}

/* Connections end within the exit timeout; those that do not are ended, and their requests cancelled. */
static void drain(Place *places, size_t count, Server *server)
{
    server_hold(server, true); /* who asks is told that it is not ready */
    awaited_end(server->awaited); /* nobody waits for what does not come any more */
    for (size_t i = 0; i < count; i++) {
        loop_post(places[i].loop, &places[i].close);
        connections_drain(places[i].loop);
    }
    log_info("the server ends: %llu connections are open", (unsigned long long)connections_count());
    if (connections_wait(server->options.exit_timeout_s * 1000ull))
        return;
    log_warning("%llu connections are ended: exit-timeout-secs are over", (unsigned long long)connections_count());
    for (size_t i = 0; i < count; i++)
        connections_abort(places[i].loop);
}

static int fail(Problem *problem)
{
    log_error("%s", problem_text(problem));
    problem_clear(problem);
    return 1;
}

/* Until it is to end; a process that waits for that begins to accept. */
static bool wait_for_end(Place *places, const Services *services, const Settings *settings, Problem *problem)
{
    bool accepting = !settings->waiting;
    while (!must_end) {
        if (sem_wait(&asked) != 0 || !may_accept || accepting)
            continue;
        accepting = true;
        for (size_t i = 0; i < settings->loops; i++) {
            if (!start_accepting(&places[i], false, problem))
                return false;
        }
        services_announce(services);
    }
    return true;
}

static int serve(const Settings *settings)
{
    Problem problem = {0};
    Services *services = services_start(settings, on_drain, &problem);
    Place *places = services ? calloc(settings->loops, sizeof *places) : NULL;
    if (places == NULL)
        return fail(&problem);
    for (size_t i = 0; i < settings->loops; i++) {
        if (!open_place(&places[i], services, settings, &problem))
            return fail(&problem); /* NOLINT(clang-analyzer-unix.Malloc): the process's end takes the rest along */
    }
    if (!settings->waiting)
        services_announce(services);
    tell_ready(settings->ready_fd);
    if (!wait_for_end(places, services, settings, &problem))
        return fail(&problem);
    drain(places, settings->loops, services_server(services));
    services_stop(services);
    for (size_t i = 0; i < settings->loops; i++)
        close_place(&places[i]);
    free(places);
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
