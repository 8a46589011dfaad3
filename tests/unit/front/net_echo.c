/* A server with a protocol of lines over the front's room net. Each line is answered in order:
 *
 *     echo TEXT      TEXT and a line break
 *     write N        N letters, offered again and again until the socket has taken them
 *     keep N         N letters, of which net keeps what the socket does not take
 *     thread N       N letters, from another thread
 *     read N         reads N more bytes, then says so
 *     sleep          nothing, until a second `sleep`, of another connection, wakes it: both are answered by another thread
 *     finish N       N letters, and the end
 *     abort          the end
 *     deadline MS    nothing; the end after that time, unless another line comes first
 *     tls            whether the connection has TLS
 *
 * Arguments: loops, then name=value of limits, tls=CERTIFICATE,KEY[,ROOT], crypto=PATH, ssl=PATH, and the descriptors that listen. It writes "ready", and at its end
 * what it has counted. SIGTERM: drain.
 */
#define _GNU_SOURCE
#include "net/listener.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct {
    char line[4096];
    size_t size;       /* bytes in `line` */
    size_t left;       /* letters that are still to be written */
    size_t to_read;    /* bytes that are still to be read */
    atomic_bool busy;  /* another thread will answer */
    bool ending, draining;
} Echo;

typedef struct Answer {
    struct Answer *next;
    Connection *connection;
    size_t count;
} Answer;

static atomic_int opened, closed, freed, gone, ended;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static Answer *answers, *sleeper;
static bool no_more;
static char letters[1 << 16];

static void say(Connection *connection, const char *text)
{
    struct iovec parts[] = {{(char *)text, strlen(text)}, {"\n", 1}};
    connection_write_all(connection, parts, 2);
}

static void keep(Connection *connection, size_t count)
{
    while (count) {
        struct iovec part = {letters, count < sizeof letters ? count : sizeof letters};
        if (!connection_write_all(connection, &part, 1))
            return;
        count -= part.iov_len;
    }
}

/* Write what is left; false: the socket takes no more. */
static bool write_left(Connection *connection, Echo *echo)
{
    while (echo->left) {
        struct iovec part = {letters, echo->left < sizeof letters ? echo->left : sizeof letters};
        ssize_t written = connection_write(connection, &part, 1);
        if (written < 0)
            return false;
        echo->left -= (size_t)written;
        if ((size_t)written < part.iov_len) {
            connection_await_writable(connection);
            return false;
        }
    }
    return true;
}

static void give(Answer *answer)
{
    pthread_mutex_lock(&lock);
    answer->next = answers;
    answers = answer;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

static Answer *new_answer(Connection *connection, size_t count)
{
    Answer *answer = calloc(1, sizeof *answer);
    answer->connection = connection_ref(connection);
    answer->count = count;
    return answer;
}

static void *answer_all(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (answers == NULL && !no_more)
            pthread_cond_wait(&more, &lock);
        Answer *answer = answers;
        if (answer)
            answers = answer->next;
        pthread_mutex_unlock(&lock);
        if (answer == NULL)
            return NULL;
        keep(answer->connection, answer->count);
        ((Echo *)connection_state(answer->connection))->busy = false;
        connection_read_later(answer->connection);
        connection_unref(answer->connection);
        free(answer);
    }
}

static void pair_up(Connection *connection)
{
    pthread_mutex_lock(&lock);
    Answer *other = sleeper;
    sleeper = other ? NULL : new_answer(connection, 5);
    pthread_mutex_unlock(&lock);
    if (other) {
        give(other);
        give(new_answer(connection, 5));
    }
}

static void obey(Connection *connection, Echo *echo, const char *line)
{
    size_t count = strtoul(line + strcspn(line, " "), NULL, 10);
    connection_set_deadline(connection, 0);
    if (strncmp(line, "echo ", 5) == 0) {
        say(connection, line + 5);
    } else if (strncmp(line, "write", 5) == 0) {
        echo->left = count;
        write_left(connection, echo);
    } else if (strncmp(line, "keep", 4) == 0) {
        keep(connection, count);
    } else if (strncmp(line, "thread", 6) == 0) {
        echo->busy = true;
        give(new_answer(connection, count));
    } else if (strncmp(line, "sleep", 5) == 0) {
        echo->busy = true;
        pair_up(connection);
    } else if (strncmp(line, "read", 4) == 0) {
        echo->to_read = count;
    } else if (strncmp(line, "finish", 6) == 0) {
        keep(connection, count);
        echo->ending = true;
        connection_finish(connection);
    } else if (strncmp(line, "abort", 5) == 0) {
        connection_abort(connection);
    } else if (strncmp(line, "deadline", 8) == 0) {
        connection_set_deadline(connection, count);
    } else {
        char peer[CONNECTION_PEER], text[128];
        snprintf(text, sizeof text, "%s %s", connection_is_tls(connection) ? "tls" : "plain",
            connection_peer(connection, peer));
        say(connection, text);
    }
}

/* Obey the first line, if it is whole. */
static bool obey_one(Connection *connection, Echo *echo)
{
    char line[sizeof echo->line];
    char *end = memchr(echo->line, '\n', echo->size);
    if (end == NULL)
        return false;
    size_t size = (size_t)(end - echo->line);
    memcpy(line, echo->line, size);
    line[size] = 0;
    echo->size -= size + 1;
    memmove(echo->line, end + 1, echo->size);
    obey(connection, echo, line);
    return true;
}

static bool read_more(Connection *connection, Echo *echo)
{
    char *to = echo->to_read ? loop_scratch(connection_loop(connection)) : echo->line + echo->size;
    size_t room = echo->to_read ? LOOP_SCRATCH : sizeof echo->line - echo->size;
    if (echo->to_read && room > echo->to_read)
        room = echo->to_read;
    ssize_t count = room ? connection_read(connection, to, room) : STREAM_BROKEN;
    if (count == STREAM_END)
        connection_finish(connection);
    else if (room == 0)
        connection_refuse(connection, REFUSED_HEADER_BYTES);
    if (count <= 0)
        return false;
    if (echo->to_read == 0) {
        echo->size += (size_t)count;
        return true;
    }
    echo->to_read -= (size_t)count;
    if (echo->to_read == 0)
        say(connection, "read");
    return true;
}

static void go_on(Connection *connection)
{
    Echo *echo = connection_state(connection);
    while (!echo->busy && echo->left == 0 && !echo->ending) {
        if (echo->to_read == 0 && obey_one(connection, echo))
            continue;
        if (!read_more(connection, echo))
            break;
    }
    if (echo->draining && !echo->busy && echo->left == 0)
        connection_finish(connection);
}

static void readable(Connection *connection)
{
    go_on(connection);
}

static void writable(Connection *connection)
{
    if (write_left(connection, connection_state(connection)))
        go_on(connection);
}

static void timed_out(Connection *connection)
{
    refusals_count(REFUSED_IDLE_TIME);
    connection_finish(connection);
}

static void hung_up(Connection *connection, bool is_gone)
{
    (void)(is_gone ? gone++ : ended++);
    if (is_gone)
        connection_abort(connection);
}

static void drain(Connection *connection)
{
    Echo *echo = connection_state(connection);
    echo->draining = true;
    if (!echo->busy && echo->left == 0)
        say(connection, "goodbye");
    go_on(connection);
}

static void count_opened(Connection *connection)
{
    (void)connection;
    opened++;
}

static void count_closed(Connection *connection)
{
    (void)connection;
    closed++;
}

static void count_freed(Connection *connection)
{
    (void)connection;
    freed++;
}

static Slice refusal(Refusal why)
{
    return why == REFUSED_CONNECTIONS ? SLICE("too many\n") : SLICE("not now\n");
}

static const Protocol protocol = {"echo", "echo", sizeof(Echo), refusal, count_opened, readable, writable, timed_out,
    hung_up, drain, count_closed, count_freed};

static void fail(Problem *problem)
{
    printf("%s\n", problem_text(problem));
    fflush(stdout);
    _exit(2);
}

static const Tls *make_tls(char *files, const char *crypto, const char *ssl)
{
    Problem problem = {0};
    TlsFiles tls = {.certificate = strsep(&files, ",")};
    tls.key = strsep(&files, ",");
    tls.root = files;
    tls.mutual = files != NULL;
    if (!tls_load(crypto, ssl, &problem))
        fail(&problem);
    Tls *made = tls_new(&tls, protocol.alpn, &problem);
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
    const char *crypto = "libcrypto.so.3", *ssl = "libssl.so.3";
    const Tls *tls = NULL;
    Problem problem = {0};
    limits = limits_default();
    for (int i = 2; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        Slice name = {arguments[i], value ? (size_t)(value - arguments[i]) : 0};
        if (value == NULL)
            endpoints[endpoint_count++] = (Endpoint){atoi(arguments[i]), &protocol, NULL, tls, &limits, false};
        else if (slice_is(name, "crypto"))
            crypto = value + 1;
        else if (slice_is(name, "ssl"))
            ssl = value + 1;
        else if (slice_is(name, "tls"))
            tls = make_tls(value + 1, crypto, ssl);
        else if (!limits_set(&limits, name, atof(value + 1), &problem))
            fail(&problem);
    }
}

static void report(void)
{
    printf("opened %d closed %d freed %d gone %d ended %d accepted %d left %d\n", opened, closed, freed, gone, ended,
        (int)connections_accepted(), (int)connections_count());
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
    enum { LOOPS = 4, THREADS = 2 };
    int loop_count = atoi(arguments[1]), number;
    Loop *loops[LOOPS];
    Listener *listeners[LOOPS][MOST];
    pthread_t threads[THREADS];
    sigset_t set;
    Problem problem = {0};
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    memset(letters, 'x', sizeof letters);
    read_arguments(count, arguments);
    for (int i = 0; i < loop_count; i++) {
        loops[i] = loop_new(&problem);
        for (int j = 0; j < endpoint_count; j++) {
            listeners[i][j] = listener_open(loops[i], &endpoints[j], &problem);
            if (listeners[i][j] == NULL)
                fail(&problem);
        }
        loop_start(loops[i], "loop", &problem);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, answer_all, NULL);
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
    pthread_mutex_lock(&lock);
    no_more = true;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < loop_count; i++) {
        loop_stop(loops[i]);
        loop_join(loops[i]);
        loop_free(loops[i]);
    }
    report();
    return 0;
}
