/* The compiled equivalent of proxy_backend/calls.py. One thread per worker receives its messages; tritonserver's
 * threads answer. A proxy that gets another worker, or ends, retires its calls: those in flight are answered, and the
 * worker makes new ones through its other proxies.
 */
#define _GNU_SOURCE
#include "calls/calls.h"

#include "base/clock.h"
#include "base/text.h"
#include "base/thread.h"
#include "calls/call.h"
#include "calls/call_answers.h"
#include "calls/call_chain.h"
#include "control/control.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The interval between checks of waiting calls, and between reports to the dispatcher. */
enum { TICK_MS = 1000 };
static const uint64_t tick_ns = 1000000000, tell_again_ns = 10000000000;
/* Seconds that calls in flight get when the model is unloaded. */
enum { END_S = 30 };

/* ── the table ──────────────────────────────────────────────────────────────────────────────────── */

static Call **find(Calls *calls, int64_t id)
{
    Call **at = &calls->table[(uint64_t)id % BUCKETS];
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

/* Remove a call from the table. */
static void unlist(Calls *calls, Call **at)
{
    Call *call = *at;
    *at = call->next;
    calls->count--;
    call_unref(call);
}

static Call *list_new(Calls *calls, const CallMessage *message)
{
    Call *call = calloc(1, sizeof *call);
    Links links = chain_links(message);
    if (call == NULL)
        return NULL;
    call->calls = calls;
    call->id = message->id;
    call->model = text_copy(message->model);
    call->stream = message->stream;
    call->flow = call->stream ? flow_new() : NULL;
    call->begun_ns = steady_ns();
    call->last_kept = &call->kept;
    call->last_queued = &call->queue;
    call->refs = 1;
    while (chain_next(&links))
        call->occupied = links.worker.size != 0;
    if (call->occupied && calls->worker == NULL)
        calls->worker = text_copy(links.worker);
    __atomic_add_fetch(&calls->refs, 1, __ATOMIC_RELAXED);
    Call **bucket = &calls->table[(uint64_t)call->id % BUCKETS];
    call->next = *bucket;
    *bucket = call;
    calls->count++;
    return call;
}

/* ── messages from the worker ───────────────────────────────────────────────────────────────────── */

/* Make a call that is in the table. */
static CallError make(Calls *calls, Call *call, const CallMessage *message)
{
    if (call->model == NULL)
        return (CallError){texted("the model's name has a zero byte"), "INVALID_ARG"};
    char *refusal = chain_refused(message, calls->endpoint);
    if (refusal)
        return (CallError){refusal, "UNAVAILABLE"};
    if (call->stream && call->flow == NULL)
        return (CallError){texted("out of memory"), "UNAVAILABLE"};
    TRITONSERVER_InferenceRequest *request = NULL;
    CallError error =
        request_make(calls->server, calls->connection, message, call->model, call->flow, &request, &call->inputs);
    if (error.text && strcmp(error.code, "NOT_FOUND") == 0 && chain_comes(message, calls->endpoint)) {
        free(error.text);
        if (request)
            failed(TRITONSERVER_InferenceRequestDelete(request));
        request = NULL;
        error =
            request_make(calls->server, calls->connection, message, call->model, call->flow, &request, &call->inputs);
    }
    call->request = request;
    return error.text ? error : call_start(call);
}

static bool begin(Calls *calls, const CallMessage *message)
{
    pthread_mutex_lock(&calls->lock);
    Call *call = *find(calls, message->id) ? NULL : list_new(calls, message);
    bool moved = calls->retired;
    calls->heard_of = true;
    if (call && moved)
        call_end(call, "this proxy goes elsewhere", "MOVED");
    if (call)
        __atomic_add_fetch(&call->refs, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&calls->lock);
    if (call == NULL)
        return false;
    CallError error = moved ? (CallError){NULL, ""} : make(calls, call, message);
    if (error.text) {
        pthread_mutex_lock(&calls->lock);
        call_end(call, error.text, error.code);
        pthread_mutex_unlock(&calls->lock);
        free(error.text);
    }
    call_unref(call);
    return true;
}

/* Handle a message. Returns false if the worker broke the protocol. */
static bool heard(Calls *calls, Reader *reader)
{
    CallMessage message;
    uint32_t fields = get_array(reader);
    Text tag = get_text(reader);
    if (text_is(tag, CALL_NAME))
        return fields > 0 && call_read(reader, fields - 1, &message) && begin(calls, &message);
    bool was_read = text_is(tag, ANSWER_READ_NAME), final = false, right = true;
    bool cancelled = text_is(tag, CALL_CANCELLED_NAME);
    int64_t id = get_int(reader);
    if (reader->malformed || !(was_read || cancelled || text_is(tag, CALL_DROPPED_NAME)))
        return false;
    pthread_mutex_lock(&calls->lock);
    Call **at = find(calls, id);
    if (was_read) {
        right = *at && call_read_one(*at, &final);
        if (right && final)
            unlist(calls, at);
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

static bool waits(const Call *call, uint64_t now_ns)
{
    return !call->ended && call->occupied && call->model && now_ns - call->begun_ns > tick_ns;
}

/* Write the models that the worker waits for, sorted, as MessagePack strings. Returns their number. */
static uint32_t waited_for(Calls *calls, uint64_t now_ns, Buffer *models)
{
    uint32_t found = 0, count = 0;
    pthread_mutex_lock(&calls->lock);
    const char **names = calloc(calls->count + 1, sizeof *names);
    for (size_t i = 0; i < BUCKETS && names; i++)
        for (Call *call = calls->table[i]; call; call = call->next)
            if (waits(call, now_ns))
                names[found++] = call->model;
    if (names)
        qsort(names, found, sizeof *names, by_name);
    for (uint32_t i = 0; i < found; i++)
        if (i == 0 || strcmp(names[i], names[i - 1]) != 0) {
            put_string(models, names[i]);
            count++;
        }
    pthread_mutex_unlock(&calls->lock);
    free(names);
    return count;
}

/* Returns whether an array of strings contains a name. */
static bool names(Reader array, const char *name)
{
    bool found = false;
    for (uint32_t left = get_array(&array); left && !array.malformed; left--)
        found |= text_is(get_text(&array), name);
    return found;
}

static void give_up(Calls *calls, uint64_t now_ns, Reader models, const char *text)
{
    pthread_mutex_lock(&calls->lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (Call *call = calls->table[i]; call; call = call->next)
            if (waits(call, now_ns) && names(models, call->model))
                call_drop(call, text, "UNAVAILABLE");
    pthread_mutex_unlock(&calls->lock);
}

/* Report to the dispatcher which models the worker waits for, and fail the calls that it declares stuck. */
static void tell(Calls *calls, const Buffer *models, uint32_t count, uint64_t now_ns)
{
    Buffer reply = {0};
    Reader stuck;
    char *text = chain_stuck(calls->endpoint, calls->name, calls->worker, models, count, &reply);
    if (text && reply_find(&reply, STUCK_CALLS_models, &stuck))
        give_up(calls, now_ns, stuck, text);
    free(text);
    buffer_free(&reply);
}

static void look_around(Calls *calls, uint64_t now_ns)
{
    Buffer models = {0};
    uint32_t count = waited_for(calls, now_ns, &models);
    bool same = models.size == calls->told.size &&
        (models.size == 0 || memcmp(models.data, calls->told.data, models.size) == 0);
    calls->looked_ns = now_ns;
    slots_give_back_idle(&calls->slots);
    if (calls->worker && !models.failed && !(same && (count == 0 || now_ns - calls->told_ns < tell_again_ns))) {
        tell(calls, &models, count, now_ns);
        calls->told_ns = now_ns;
        buffer_free(&calls->told);
        calls->told = models;
        return;
    }
    buffer_free(&models);
}

/* ── the reader ─────────────────────────────────────────────────────────────────────────────────── */

static void forget_all(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    calls->retired = true;
    for (size_t i = 0; i < BUCKETS; i++)
        while (calls->table[i]) {
            call_forget(calls->table[i]);
            unlist(calls, &calls->table[i]);
        }
    pthread_mutex_unlock(&calls->lock);
}

static bool is_busy(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    bool busy = calls->count || calls->told.size;
    pthread_mutex_unlock(&calls->lock);
    return busy || slots_large(&calls->slots);
}

static void *read_all(void *argument)
{
    Calls *calls = argument;
    Heard state;
    do {
        Reader message;
        state = connection_receive(calls->connection, is_busy(calls) ? TICK_MS : -1, &message);
        if (state == HEARD_MESSAGE && !heard(calls, &message)) {
            state = HEARD_FAULT;
            log_error("a worker broke the protocol, its calls fail: unexpected message");
        } else if (state == HEARD_FAULT) {
            log_error("a worker broke the protocol, its calls fail: %s", connection_fault(calls->connection));
        }
        uint64_t now_ns = steady_ns();
        if (now_ns - calls->looked_ns > tick_ns)
            look_around(calls, now_ns);
    } while (state == HEARD_MESSAGE || state == HEARD_NOTHING);
    forget_all(calls);
    slots_close(&calls->slots);
    connection_close(calls->connection);
    if (calls->told.size) {
        Buffer none = {0};
        tell(calls, &none, 0, steady_ns());
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
        return; /* its calls fail with the error that no proxy makes them */
    calls->connection = connection_open(lane_path);
    if (calls->connection == NULL) { /* or the worker is about to end, which its lane reports, too */
        if (errno == EMFILE || errno == ENFILE)
            log_error("model %s: a worker's calls cannot be made, no descriptors are left", caller->model_name);
        free(calls);
        return;
    }
    pthread_mutex_init(&calls->lock, NULL);
    slots_open(&calls->slots, calls->connection);
    calls->endpoint = strdup(caller->endpoint);
    calls->name = texted("%s:calls-%lu", caller->proxy, __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED));
    calls->looked_ns = steady_ns();
    calls->refs = 2;
    if (failed(TRITONBACKEND_ModelServer(caller->model, &calls->server)) || calls->endpoint == NULL ||
        calls->name == NULL || !start_thread(&calls->reader, SMALL_STACK, read_all, calls)) {
        log_error("model %s: a worker's calls cannot be made, no thread or memory is left", caller->model_name);
        connection_close(calls->connection);
        calls->refs = 1;
        calls_unref(calls);
        return;
    }
    calls->next = *all;
    *all = calls;
}

/* Free calls objects that have ended. */
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
    bool retired = calls->retired, heard_of = calls->heard_of;
    calls->retired = true;
    pthread_mutex_unlock(&calls->lock);
    put_array(&message, RETIRING_SIZE);
    put_string(&message, RETIRING_NAME);
    if (!retired && heard_of) /* it closes the connection after it has read all its answers */
        connection_send(calls->connection, &message);
    else if (!retired)
        connection_take_no_more(calls->connection);
    buffer_free(&message);
    reap(all);
}

void calls_end(Calls **all)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += END_S;
    while (*all) {
        Calls *calls = *all;
        *all = calls->next;
        if (pthread_timedjoin_np(calls->reader, NULL, &deadline) != 0) {
            connection_hang_up(calls->connection);
            pthread_join(calls->reader, NULL);
        }
        calls_unref(calls);
    }
}
