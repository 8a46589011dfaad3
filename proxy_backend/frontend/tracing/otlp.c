#define _GNU_SOURCE
#include "tracing/otlp.h"

#include "base/log.h"
#include "tracing/spans.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SEND_S = 10, ANSWER = 1024 };

struct Otlp {
    char *authority, *host, *port, *path; /* parts of the URL; `host` has no brackets */
    Buffer resource, headers;
    size_t batch, most;
    int64_t delay_ms;
    pthread_t thread;
    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t changed;
    TraceRecord *first, **last;
    size_t waiting;
    uint64_t lost;
    bool ends;
};

/* ── sending ────────────────────────────────────────────────────────────────────────────────────── */

/* Connect to the collector, with a time limit of SEND_S for each address. Returns -1 with errno on failure. */
static int connect_to(const Otlp *otlp)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all;
    int fd = -1;
    if (getaddrinfo(otlp->host, otlp->port, &hints, &all) != 0) {
        errno = EHOSTUNREACH;
        return -1;
    }
    for (const struct addrinfo *one = all; one && fd < 0; one = one->ai_next) {
        struct timeval most = {.tv_sec = SEND_S};
        fd = socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol);
        if (fd < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most);
        if (connect(fd, one->ai_addr, one->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(all);
    return fd;
}

static bool send_all(int fd, Slice bytes)
{
    while (bytes.size) {
        ssize_t sent = send(fd, bytes.start, bytes.size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent <= 0)
            return false;
        bytes = slice_after(bytes, (size_t)sent);
    }
    return true;
}

/* Returns the HTTP status of the answer, or 0 if there is none. */
static int read_status(int fd)
{
    char response[ANSWER + 1] = ""; /* Zeroed, so that the received text is always terminated by NUL. */
    size_t size = 0;
    while (size < ANSWER && memchr(response, '\n', size) == NULL) {
        ssize_t some = recv(fd, response + size, ANSWER - size, 0);
        if (some < 0 && errno == EINTR)
            continue;
        if (some <= 0)
            break;
        size += (size_t)some;
    }
    bool is_http = strncmp(response, "HTTP/1.", 7) == 0 && response[7] != '\0' && response[8] == ' ';
    return is_http ? (int)strtol(response + 9, NULL, 10) : 0;
}

static void send_records(Otlp *otlp, const TraceRecord *records)
{
    Buffer json = {0}, head = {0};
    spans_write(records, buffer_slice(&otlp->resource), &json);
    buffer_format(&head,
        "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\nConnection: "
        "close\r\n",
        otlp->path, otlp->authority, json.size);
    buffer_put_slice(&head, buffer_slice(&otlp->headers));
    buffer_put_string(&head, "\r\n");
    int fd = json.failed || head.failed ? -1 : connect_to(otlp);
    int status = 0;
    if (fd >= 0 && send_all(fd, buffer_slice(&head)) && send_all(fd, buffer_slice(&json)))
        status = read_status(fd);
    if (status < 200 || status > 299)
        log_error("cannot send traces to http://%s%s: %s %d", otlp->authority, otlp->path,
            status ? "the status is" : strerror(errno), status);
    if (fd >= 0)
        close(fd);
    buffer_free(&json);
    buffer_free(&head);
}

/* ── the queue ──────────────────────────────────────────────────────────────────────────────────── */

static void free_records(TraceRecord *records)
{
    for (TraceRecord *record = records, *next; record; record = next) {
        next = record->next;
        trace_record_free(record);
    }
}

/* Remove and return the oldest records of the queue, at most a batch. The caller holds the lock. */
static TraceRecord *take_batch(Otlp *otlp)
{
    TraceRecord *first = otlp->first, **end = &otlp->first;
    for (size_t i = 0; i < otlp->batch && *end; i++) {
        end = &(*end)->next;
        otlp->waiting--;
    }
    TraceRecord *rest = *end;
    *end = NULL;
    otlp->first = rest;
    if (rest == NULL)
        otlp->last = &otlp->first;
    return first;
}

static void *work(void *argument)
{
    Otlp *otlp = argument;
    pthread_mutex_lock(&otlp->lock);
    while (!otlp->ends || otlp->first) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += otlp->delay_ms / 1000;
        until.tv_nsec += otlp->delay_ms % 1000 * 1000000;
        if (until.tv_nsec >= 1000000000) {
            until.tv_nsec -= 1000000000;
            until.tv_sec++;
        }
        while (!otlp->ends && otlp->waiting < otlp->batch &&
            pthread_cond_timedwait(&otlp->changed, &otlp->lock, &until) != ETIMEDOUT)
            ;
        TraceRecord *records = take_batch(otlp);
        uint64_t lost = otlp->lost;
        otlp->lost = 0;
        pthread_mutex_unlock(&otlp->lock);
        if (lost)
            log_warning("%llu traces were lost: the collector accepts them too slowly", (unsigned long long)lost);
        if (records)
            send_records(otlp, records);
        free_records(records);
        pthread_mutex_lock(&otlp->lock);
    }
    pthread_mutex_unlock(&otlp->lock);
    return NULL;
}

void otlp_put(Otlp *otlp, TraceRecord *record)
{
    pthread_mutex_lock(&otlp->lock);
    bool kept = otlp->waiting < otlp->most;
    if (kept) {
        record->next = NULL;
        *otlp->last = record;
        otlp->last = &record->next;
        if (++otlp->waiting >= otlp->batch)
            pthread_cond_signal(&otlp->changed);
    } else {
        otlp->lost++;
    }
    pthread_mutex_unlock(&otlp->lock);
    if (!kept)
        trace_record_free(record);
}

/* ── beginning and end ──────────────────────────────────────────────────────────────────────────── */

/* Parse "http://host:port/path". An IPv6 address is in brackets. */
static bool parse_url(Otlp *otlp, const char *url, Problem *problem)
{
    Slice rest = slice_of(url), authority;
    if (!slice_starts(rest, "http://"))
        return problem_set(
            problem, PROBLEM_INVALID, "trace-config opentelemetry,url is '%s', but must begin with http://", url);
    rest = slice_after(rest, strlen("http://"));
    const char *slash = memchr(rest.start, '/', rest.size);
    authority = (Slice){rest.start, slash ? (size_t)(slash - rest.start) : rest.size};
    const char *colon = memrchr(authority.start, ':', authority.size);
    if (colon && memchr(colon, ']', (size_t)(authority.start + authority.size - colon)))
        colon = NULL;
    Slice host = {authority.start, colon ? (size_t)(colon - authority.start) : authority.size};
    if (host.size > 1 && *host.start == '[' && host.start[host.size - 1] == ']')
        host = (Slice){host.start + 1, host.size - 2};
    otlp->authority = slice_copy(authority);
    otlp->host = slice_copy(host);
    otlp->port = colon ? slice_copy((Slice){colon + 1, (size_t)(authority.start + authority.size - colon - 1)})
                       : slice_copy(SLICE("80"));
    otlp->path = slice_copy(slash ? slice_of(slash) : SLICE("/"));
    for (const char *at = url; *at; at++)
        if ((unsigned char)*at <= ' ')
            return problem_set(problem, PROBLEM_INVALID, "trace-config opentelemetry,url contains a space");
    return otlp->authority && otlp->host && otlp->port && otlp->path ? true : problem_no_memory(problem);
}

/* Read OpenTelemetry's environment variables: resource attributes, which come before those of the settings, and
 * headers for the collector.
 */
static void read_environment(Otlp *otlp, const TraceSettings *settings)
{
    const char *resource = getenv("OTEL_RESOURCE_ATTRIBUTES"), *service = getenv("OTEL_SERVICE_NAME");
    const char *headers = getenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS");
    headers = headers ? headers : getenv("OTEL_EXPORTER_OTLP_HEADERS");
    if (resource && *resource)
        buffer_format(&otlp->resource, "%s,", resource);
    if (service && *service)
        buffer_format(&otlp->resource, "service.name=%s,", service);
    buffer_put_slice(&otlp->resource, buffer_slice(&settings->resource));
    Slice rest = slice_of(headers), one;
    while (slice_split(&rest, ',', &one)) {
        Slice name;
        if (memchr(one.start, '\r', one.size) || memchr(one.start, '\n', one.size) || !slice_split(&one, '=', &name) ||
            one.start == NULL)
            continue;
        buffer_put_slice(&otlp->headers, slice_trimmed(name));
        buffer_put_string(&otlp->headers, ": ");
        buffer_put_slice(&otlp->headers, slice_trimmed(one));
        buffer_put_string(&otlp->headers, "\r\n");
    }
}

static bool begin(Otlp *otlp, Problem *problem)
{
    pthread_condattr_t attributes;
    if (pthread_mutex_init(&otlp->lock, NULL) != 0 || pthread_condattr_init(&attributes) != 0)
        return problem_no_memory(problem);
    bool begun = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC) == 0 &&
        pthread_cond_init(&otlp->changed, &attributes) == 0 && pthread_create(&otlp->thread, NULL, work, otlp) == 0;
    pthread_condattr_destroy(&attributes);
    return begun ? true : problem_no_memory(problem);
}

static void free_all(Otlp *otlp)
{
    buffer_free(&otlp->resource);
    buffer_free(&otlp->headers);
    free(otlp->authority);
    free(otlp->host);
    free(otlp->port);
    free(otlp->path);
    free(otlp);
}

Otlp *otlp_new(const TraceSettings *settings, Problem *problem)
{
    Otlp *otlp = calloc(1, sizeof *otlp);
    if (otlp == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    otlp->last = &otlp->first;
    otlp->batch = (size_t)settings->batch;
    otlp->most = (size_t)settings->queue;
    otlp->delay_ms = settings->delay_ms;
    read_environment(otlp, settings);
    if (!parse_url(otlp, settings->url, problem) || !begin(otlp, problem)) {
        free_all(otlp);
        return NULL;
    }
    return otlp;
}

void otlp_free(Otlp *otlp)
{
    if (otlp == NULL)
        return;
    pthread_mutex_lock(&otlp->lock);
    otlp->ends = true;
    pthread_cond_signal(&otlp->changed);
    pthread_mutex_unlock(&otlp->lock);
    pthread_join(otlp->thread, NULL);
    pthread_cond_destroy(&otlp->changed);
    pthread_mutex_destroy(&otlp->lock);
    free_all(otlp);
}
