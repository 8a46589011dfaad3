/* A server with a protocol of lines (net_echo_protocol.c) over the frontend's room net.
 *
 * Arguments: loops, then name=value of limits, tls=CERTIFICATE,KEY[,ROOT], ssl=PATH, and the descriptors that listen. It writes "ready", and at its end
 * what it has counted. SIGTERM: drain.
 */
#define _GNU_SOURCE
#include "net_echo.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void fail(Problem *problem)
{
    printf("%s\n", problem_text(problem));
    fflush(stdout);
    _exit(2);
}

static const Tls *make_tls(char *files, const char *ssl)
{
    Problem problem = {0};
    TlsFiles tls = {.certificate = strsep(&files, ",")};
    tls.key = strsep(&files, ",");
    tls.root = files;
    tls.mutual = files != NULL;
    if (!tls_load("libcrypto.so.3", ssl, &problem))
        fail(&problem);
    Tls *made = tls_new(&tls, echo_protocol.alpn, &problem);
    if (made == NULL)
        fail(&problem);
    return made;
}

enum { MOST = 8 };
static Limits limits;
static Endpoint endpoints[MOST];
static int endpoint_count;

static void read_arguments(int count, char **arguments)
{
    const char *ssl = "libssl.so.3";
    const Tls *tls = NULL;
    Problem problem = {0};
    limits = limits_default();
    for (int i = 2; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        Slice name = {arguments[i], value ? (size_t)(value - arguments[i]) : 0};
        if (value == NULL)
            endpoints[endpoint_count++] =
                (Endpoint){.fd = atoi(arguments[i]), .protocol = &echo_protocol, .tls = tls, .limits = &limits};
        else if (slice_is(name, "ssl"))
            ssl = value + 1;
        else if (slice_is(name, "tls"))
            tls = make_tls(value + 1, ssl);
        else if (!limits_set(&limits, name, atof(value + 1), &problem))
            fail(&problem);
    }
}

static void report(void)
{
    printf("opened %d closed %d freed %d gone %d ended %d accepted %d left %d\n", echo_counts.opened,
        echo_counts.closed, echo_counts.freed, echo_counts.gone, echo_counts.ended, (int)connections_accepted(),
        (int)connections_count());
    for (int i = 0; i < REFUSALS; i++) {
        if (refusals_read((Refusal)i))
            printf("refused %s %d\n", refusal_name((Refusal)i), (int)refusals_read((Refusal)i));
    }
    fflush(stdout);
}

typedef struct {
    Task task;
    Listener *listener;
} Closing;

static void stop_accepting(Task *task)
{
    listener_close(((Closing *)task)->listener);
    free(task);
}

int main(int count, char **arguments)
{
    enum { LOOPS = 4 };
    int loop_count = atoi(arguments[1]), number;
    Loop *loops[LOOPS];
    Listener *listeners[LOOPS][MOST];
    sigset_t set;
    Problem problem = {0};
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    read_arguments(count, arguments);
    echo_threads_begin();
    for (int i = 0; i < loop_count; i++) {
        loops[i] = loop_new(&problem);
        for (int j = 0; j < endpoint_count; j++) {
            listeners[i][j] = listener_open(loops[i], &endpoints[j], &problem);
            if (listeners[i][j] == NULL)
                fail(&problem);
        }
        loop_start(loops[i], "loop", &problem);
    }
    printf("ready\n");
    fflush(stdout);
    sigwait(&set, &number);
    for (int i = 0; i < loop_count; i++) {
        for (int j = 0; j < endpoint_count; j++) {
            Closing *closing = calloc(1, sizeof *closing);
            closing->task.run = stop_accepting;
            closing->listener = listeners[i][j];
            loop_post(loops[i], &closing->task);
        }
        connections_drain(loops[i]);
    }
    if (!connections_wait(60000)) {
        for (int i = 0; i < loop_count; i++)
            connections_abort(loops[i]);
        connections_wait(5000);
    }
    echo_threads_end();
    for (int i = 0; i < loop_count; i++) {
        loop_stop(loops[i]);
        loop_join(loops[i]);
        loop_free(loops[i]);
    }
    report();
    return 0;
}
