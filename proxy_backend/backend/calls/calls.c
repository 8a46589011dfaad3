/* Calls that a worker makes to other models. The compiled equivalent of proxy_backend/python_proxy/calls.py.
 *
 * One thread per worker receives the worker's messages, and tritonserver's threads send the answers. A proxy that ends
 * or gets another worker retires its calls: those in flight are still answered, and the worker makes new ones through
 * its other proxies.
 */
#define _GNU_SOURCE
#include "calls/calls.h"

#include "common/clock.h"
#include "base/strings.h"
#include "base/thread.h"
#include "calls/call.h"
#include "calls/call_chain.h"
#include "control/control.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Interval between checks of waiting calls, and between reports to the dispatcher. */
enum { CHECK_INTERVAL_MS = 1000 };
static const uint64_t check_interval_ns = 1000000000, report_interval_ns = 10000000000;
/* Time that calls in flight get to complete when the model is unloaded. */
enum { SHUTDOWN_TIMEOUT_S = 30 };

/* ── the table ──────────────────────────────────────────────────────────────────────────────────── */

static Call **find(Calls *calls, int64_t id)
{
    Call **at = &calls->table[(uint64_t)id % CALL_BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* Remove a call from the table. */
static void remove_call(Calls *calls, Call **at)
{
    Call *call = *at;
    *at = call->next;
    calls->count--;
    call_unref(call);
}

static Call *add_call(Calls *calls, const CallMessage *message)
{
    Call *call = calloc(1, sizeof *call);
    Links links = chain_links(message);
    if (call == NULL)
        return NULL;
    call->calls = calls;
    call->id = message->id;
    call->model = strdup_slice(message->model);
    call->stream = message->stream;
    call->flow = call->stream ? flow_new() : NULL;
    call->begun_ns = clock_ns();
    call->unread_tail = &call->unread_head;
    call->queue_tail = &call->queue_head;
    call->refs = 1;
    while (chain_next(&links))
        call->blocks_worker = links.worker.size != 0;
    if (call->blocks_worker && calls->worker == NULL)
        calls->worker = strdup_slice(links.worker);
    __atomic_add_fetch(&calls->refs, 1, __ATOMIC_RELAXED);
    Call **bucket = &calls->table[(uint64_t)call->id % CALL_BUCKETS];
    call->next = *bucket;
    *bucket = call;
    calls->count++;
    return call;
}

/* ── messages from the worker ───────────────────────────────────────────────────────────────────── */

/* Start a call that is already in the table. */
static CallError start_call(Calls *calls, Call *call, const CallMessage *message)
{
    if (call->model == NULL)
        return (CallError){strdup_printf("the model's name has a zero byte"), "INVALID_ARG"};
    char *refusal = chain_check(message, calls->endpoint);
    if (refusal)
        return (CallError){refusal, "UNAVAILABLE"};
    if (call->stream && call->flow == NULL)
        return (CallError){strdup_printf("out of memory"), "UNAVAILABLE"};
    TRITONSERVER_InferenceRequest *request = NULL;
    CallError error =
        call_request_new(calls->server, calls->connection, message, call->model, call->flow, &request, &call->inputs);
    if (error.text && strcmp(error.code, "NOT_FOUND") == 0 && chain_load_model(message, calls->endpoint)) {
        free(error.text);
        if (request)
            triton_error_consume(TRITONSERVER_InferenceRequestDelete(request));
        request = NULL;
        error = call_request_new(
            calls->server, calls->connection, message, call->model, call->flow, &request, &call->inputs);
    }
    call->request = request;
    return error.text ? error : call_start(call);
}

static bool begin_call(Calls *calls, const CallMessage *message)
{
    pthread_mutex_lock(&calls->lock);
    Call *call = *find(calls, message->id) ? NULL : add_call(calls, message);
    bool moved = calls->retired;
    calls->has_made_calls = true;
    if (call && moved)
        call_end(call, "this proxy is retiring", "MOVED");
    if (call)
        __atomic_add_fetch(&call->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&calls->lock);
    if (call == NULL)
        return false;
    CallError error = moved ? (CallError){NULL, ""} : start_call(calls, call, message);
    if (error.text) {
        pthread_mutex_lock(&calls->lock);
        call_end(call, error.text, error.code);
        pthread_mutex_unlock(&calls->lock);
        free(error.text);
    }
    call_unref(call);
    return true;
}

/* Handle a message of the worker. Returns false if it violates the protocol. */
static bool handle_message(Calls *calls, Reader *reader)
{
    CallMessage message;
    uint32_t fields = msgpack_get_array(reader);
    Slice tag = msgpack_get_text(reader);
    if (slice_is(tag, CALL_NAME))
        return fields > 0 && call_message_read(reader, fields - 1, &message) && begin_call(calls, &message);
    bool was_read = slice_is(tag, ANSWER_READ_NAME), final = false, right = true;
    bool cancelled = slice_is(tag, CALL_CANCELLED_NAME);
    int64_t id = msgpack_get_int(reader);
    if (reader->malformed || !(was_read || cancelled || slice_is(tag, CALL_DROPPED_NAME)))
        return false;
    pthread_mutex_lock(&calls->lock);
    Call **at = find(calls, id);
    if (was_read) {
        right = *at && call_release_oldest(*at, &final);
        if (right && final)
            remove_call(calls, at);
    } else if (*at && cancelled) {
        call_cancel(*at);
    } else if (*at) {
        call_drop(*at, NULL, "");
    }
    pthread_mutex_unlock(&calls->lock);
    return right;
}

/* ── calls that have waited long ────────────────────────────────────────────────────────────────── */

static int by_name(const void *one, const void *other)
{
    return strcmp(*(const char *const *)one, *(const char *const *)other);
}

static bool has_waited_long(const Call *call, uint64_t now_ns)
{
    return !call->ended && call->blocks_worker && call->model && now_ns - call->begun_ns > check_interval_ns;
}

/* Write the names of the models that the worker is waiting for, sorted, as MessagePack strings. Returns their number.
 */
static uint32_t put_waited_models(Calls *calls, uint64_t now_ns, Buffer *models)
{
    uint32_t found = 0, count = 0;
    pthread_mutex_lock(&calls->lock);
    const char **names = calloc(calls->count + 1, sizeof *names);
    for (size_t i = 0; i < CALL_BUCKETS && names; i++)
        for (Call *call = calls->table[i]; call; call = call->next)
            if (has_waited_long(call, now_ns))
                names[found++] = call->model;
    if (names)
        qsort(names, found, sizeof *names, by_name);
    for (uint32_t i = 0; i < found; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) {
            msgpack_put_string(models, names[i]);
            count++;
        }
    pthread_mutex_unlock(&calls->lock);
    free(names);
    return count;
}

/* Returns whether an array of strings contains a name. */
static bool array_contains(Reader array, const char *name)
{
    bool found = false;
    for (uint32_t left = msgpack_get_array(&array); left && !array.malformed; left--)
        found |= slice_is(msgpack_get_text(&array), name);
    return found;
}

static void fail_stuck_calls(Calls *calls, uint64_t now_ns, Reader models, const char *text)
{
    pthread_mutex_lock(&calls->lock);
    for (size_t i = 0; i < CALL_BUCKETS; i++)
        for (Call *call = calls->table[i]; call; call = call->next)
            if (has_waited_long(call, now_ns) && array_contains(models, call->model))
                call_drop(call, text, "UNAVAILABLE");
    pthread_mutex_unlock(&calls->lock);
}

/* Report the models that the worker is waiting for, and fail the calls that the dispatcher declares stuck. */
static void report_waiting(Calls *calls, const Buffer *models, uint32_t count, uint64_t now_ns)
{
    Buffer reply = {0};
    Reader stuck;
    char *text = chain_report_waiting(calls->endpoint, calls->name, calls->worker, models, count, &reply);
    if (text && reply_get(&reply, STUCK_CALLS_models, &stuck))
        fail_stuck_calls(calls, now_ns, stuck, text);
    free(text);
    buffer_free(&reply);
}

static void check_waiting_calls(Calls *calls, uint64_t now_ns)
{
    Buffer models = {0};
    uint32_t count = put_waited_models(calls, now_ns, &models);
    bool same = models.size == calls->reported_models.size &&
        (models.size == 0 || memcmp(models.data, calls->reported_models.data, models.size) == 0);
    calls->checked_ns = now_ns;
    slots_trim(&calls->slots);
    if (calls->worker && !models.failed &&
        !(same && (count == 0 || now_ns - calls->reported_ns < report_interval_ns))) {
        report_waiting(calls, &models, count, now_ns);
        calls->reported_ns = now_ns;
        buffer_free(&calls->reported_models);
        calls->reported_models = models;
        return;
    }
    buffer_free(&models);
}

/* ── the reader ─────────────────────────────────────────────────────────────────────────────────── */

static void discard_all(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    calls->retired = true;
    for (size_t i = 0; i < CALL_BUCKETS; i++)
        while (calls->table[i]) {
            call_discard(calls->table[i]);
            remove_call(calls, &calls->table[i]);
        }
    pthread_mutex_unlock(&calls->lock);
}

static bool is_busy(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    bool busy = calls->count || calls->reported_models.size;
    pthread_mutex_unlock(&calls->lock);
    return busy || slots_exceed_limit(&calls->slots);
}

static void *reader_run(void *argument)
{
    Calls *calls = argument;
    Received state;
    do {
        Reader message;
        state = call_connection_receive(calls->connection, is_busy(calls) ? CHECK_INTERVAL_MS : -1, &message);
        if (state == RECEIVED_MESSAGE && !handle_message(calls, &message)) {
            state = RECEIVED_FAULT;
            log_error("a worker broke the protocol, its calls fail: unexpected message");
        } else if (state == RECEIVED_FAULT) {
            log_error("a worker broke the protocol, its calls fail: %s", call_connection_fault(calls->connection));
        }
        uint64_t now_ns = clock_ns();
        if (now_ns - calls->checked_ns > check_interval_ns)
            check_waiting_calls(calls, now_ns);
    } while (state == RECEIVED_MESSAGE || state == RECEIVED_NOTHING);
    discard_all(calls);
    slots_close(&calls->slots);
    call_connection_close(calls->connection);
    if (calls->reported_models.size) {
        Buffer none = {0};
        report_waiting(calls, &none, 0, clock_ns());
    }
    calls_unref(calls);
    return NULL;
}

/* ── end of the proxy ───────────────────────────────────────────────────────────────────────────── */

void calls_serve(Calls **all, const Caller *caller, const char *lane_path)
{
    static uint64_t made;
    Calls *calls = calloc(1, sizeof *calls);
    if (calls == NULL)
        return; /* Calls fail with the error that no proxy makes them. */
    calls->connection = call_connection_open(lane_path);
    if (calls->connection == NULL) { /* Or the worker is about to end, which its lane will report. */
        if (errno == EMFILE || errno == ENFILE)
            log_error("model %s: a worker cannot make calls: no file descriptors are left", caller->model_name);
        free(calls);
        return;
    }
    pthread_mutex_init(&calls->lock, NULL);
    slots_open(&calls->slots, calls->connection);
    calls->endpoint = strdup(caller->endpoint);
    calls->name = strdup_printf("%s:calls-%lu", caller->proxy, __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED));
    calls->checked_ns = clock_ns();
    calls->refs = 2;
    if (triton_error_consume(TRITONBACKEND_ModelServer(caller->model, &calls->server)) || calls->endpoint == NULL ||
        calls->name == NULL || !thread_start(&calls->reader, THREAD_SMALL_STACK, reader_run, calls)) {
        log_error("model %s: a worker cannot make calls: no threads or memory are left", caller->model_name);
        call_connection_close(calls->connection);
        calls->refs = 1;
        calls_unref(calls);
        return;
    }
    calls->next = *all;
    *all = calls;
}

/* Free the records of workers whose calls have all completed. */
static void reap(Calls **at)
{
    while (*at) {
        Calls *calls = *at;
        if (pthread_tryjoin_np(calls->reader, NULL) != 0) {
            at = &calls->next;
            continue;
        }
        *at = calls->next;
        calls_unref(calls);
    }
}

void calls_retire(Calls **all)
{
    Buffer message = {0};
    Calls *calls = *all;
    if (calls == NULL)
        return;
    pthread_mutex_lock(&calls->lock);
    bool retired = calls->retired, has_made_calls = calls->has_made_calls;
    calls->retired = true;
    pthread_mutex_unlock(&calls->lock);
    msgpack_put_array(&message, RETIRING_SIZE);
    msgpack_put_string(&message, RETIRING_NAME);
    if (!retired && has_made_calls) /* The worker closes the connection itself after it has read all its answers. */
        call_connection_send(calls->connection, &message);
    else if (!retired)
        call_connection_shutdown_read(calls->connection);
    buffer_free(&message);
    reap(all);
}

void calls_end(Calls **all)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += SHUTDOWN_TIMEOUT_S;
    while (*all) {
        Calls *calls = *all;
        *all = calls->next;
        if (pthread_timedjoin_np(calls->reader, NULL, &deadline) != 0) {
            call_connection_shutdown(calls->connection);
            pthread_join(calls->reader, NULL);
        }
        calls_unref(calls);
    }
}
