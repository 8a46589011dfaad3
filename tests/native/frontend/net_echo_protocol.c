/* A protocol of lines. Each line is answered in order:
 *
 *     echo TEXT      TEXT and a line break
 *     write N        N letters, offered again and again until the socket has taken them
 *     keep N         N letters, of which net keeps what the socket does not take
 *     whole N        the same, given to net at once
 *     thread N       N letters, from another thread
 *     read N         reads N more bytes, then says so
 *     sleep          nothing, until a second `sleep`, of another connection, wakes it: both are answered by another thread
 *     finish N       N letters, and the end
 *     deadline MS    nothing; the end after that time, unless another line comes first
 *     who            the client's address, and whether the connection has TLS
 */
#define _GNU_SOURCE
#include "net_echo.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    char line[4096];
    size_t size;       /* bytes in `line` */
    size_t left;       /* letters that are still to be written */
    size_t to_read;    /* bytes that are still to be read */
    atomic_bool busy;  /* another thread will answer */
    bool ending, draining;
} Echo;

typedef struct CallResponse {
    struct CallResponse *next;
    Connection *connection;
    size_t count;
} CallResponse;

EchoCounts echo_counts;

enum { THREADS = 2 };
static pthread_t threads[THREADS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
static CallResponse *responses, *sleeper;
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

static void keep_whole(Connection *connection, size_t count)
{
    struct iovec part = {malloc(count), count};
    memset(part.iov_base, 'x', count);
    connection_write_all(connection, &part, 1);
    free(part.iov_base);
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

static void give(CallResponse *response)
{
    pthread_mutex_lock(&lock);
    response->next = responses;
    responses = response;
    pthread_cond_signal(&more);
    pthread_mutex_unlock(&lock);
}

static CallResponse *new_answer(Connection *connection, size_t count)
{
    CallResponse *response = calloc(1, sizeof *response);
    response->connection = connection_ref(connection);
    response->count = count;
    return response;
}

static void *answer_all(void *unused)
{
    (void)unused;
    for (;;) {
        pthread_mutex_lock(&lock);
        while (responses == NULL && !no_more)
            pthread_cond_wait(&more, &lock);
        CallResponse *response = responses;
        if (response)
            responses = response->next;
        pthread_mutex_unlock(&lock);
        if (response == NULL)
            return NULL;
        keep(response->connection, response->count);
        ((Echo *)connection_state(response->connection))->busy = false;
        connection_read_later(response->connection);
        connection_unref(response->connection);
        free(response);
    }
}

static void pair_up(Connection *connection)
{
    pthread_mutex_lock(&lock);
    CallResponse *other = sleeper;
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
    } else if (strncmp(line, "whole", 5) == 0) {
        keep_whole(connection, count);
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
    (void)(is_gone ? echo_counts.gone++ : echo_counts.ended++);
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
    echo_counts.opened++;
}

static void count_closed(Connection *connection)
{
    (void)connection;
    echo_counts.closed++;
}

static void count_freed(Connection *connection)
{
    (void)connection;
    echo_counts.freed++;
}

static Slice refusal(Refusal why)
{
    return why == REFUSED_CONNECTIONS ? SLICE("too many\n") : SLICE("not now\n");
}

const Protocol echo_protocol = {"echo", "echo", sizeof(Echo), refusal, count_opened, readable, writable, timed_out,
    hung_up, drain, count_closed, count_freed, NULL};

void echo_threads_begin(void)
{
    memset(letters, 'x', sizeof letters);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, answer_all, NULL);
}

void echo_threads_end(void)
{
    pthread_mutex_lock(&lock);
    no_more = true;
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}
