#define _GNU_SOURCE
#include "streams/flights.h"

#include "common/clock.h"
#include "base/thread.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* How long to delay closing: gRPC drops pending answers immediately when a client disconnects. */
static const uint64_t delay_ns = 300000000;

typedef struct DelayedClose {
    struct DelayedClose *next;
    TRITONBACKEND_ResponseFactory *factory;
    uint64_t due_ns;
} DelayedClose;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t added = PTHREAD_COND_INITIALIZER;
static DelayedClose *pending, **pending_tail = &pending; /* sorted by due_ns */

static void close_now(TRITONBACKEND_ResponseFactory *factory)
{
    triton_error_consume(TRITONBACKEND_ResponseFactorySendFlags(factory, RESPONSE_FINAL));
    triton_error_consume(TRITONBACKEND_ResponseFactoryDelete(factory));
}

static DelayedClose *next_pending(void)
{
    pthread_mutex_lock(&lock);
    while (pending == NULL)
        pthread_cond_wait(&added, &lock);
    DelayedClose *item = pending;
    pending = item->next;
    if (pending == NULL)
        pending_tail = &pending;
    pthread_mutex_unlock(&lock);
    return item;
}

static void *close_loop(void *unused)
{
    (void)unused;
    for (;;) {
        DelayedClose *item = next_pending();
        struct timespec due = {
            .tv_sec = (time_t)(item->due_ns / 1000000000), .tv_nsec = (long)(item->due_ns % 1000000000)};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL))
            ;
        close_now(item->factory);
        free(item);
    }
    return NULL;
}

static bool running;

static void start(void)
{
    pthread_t thread; /* The thread runs until the process ends. */
    running = thread_start(&thread, THREAD_SMALL_STACK, close_loop, NULL);
    if (running)
        pthread_detach(thread);
}

/* Close a request's factory after a delay, in another thread. Takes ownership of the factory. */
static void delayed_close(TRITONBACKEND_ResponseFactory *factory)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    DelayedClose *item = running ? malloc(sizeof *item) : NULL;
    if (item == NULL) {
        close_now(factory);
        return;
    }
    *item = (DelayedClose){.factory = factory, .due_ns = clock_ns() + delay_ns};
    pthread_mutex_lock(&lock);
    *pending_tail = item;
    pending_tail = &item->next;
    pthread_cond_signal(&added);
    pthread_mutex_unlock(&lock);
}

void stream_set_failed(Stream *stream)
{
    __atomic_store_n(&stream->failed, true, __ATOMIC_RELAXED);
}

bool stream_has_failed(const Stream *stream)
{
    return __atomic_load_n(&stream->failed, __ATOMIC_RELAXED);
}

void stream_close(Stream *stream)
{
    if (stream->to.factory)
        triton_error_consume(TRITONBACKEND_ResponseFactoryDelete(stream->to.factory));
    stream->to.factory = NULL;
}

void stream_end(Stream *stream)
{
    if (stream->to.factory && response_client_is_gone(stream->to.factory)) {
        delayed_close(stream->to.factory);
        stream->to.factory = NULL;
    } else if (stream->to.factory) {
        triton_error_consume(TRITONBACKEND_ResponseFactorySendFlags(stream->to.factory, RESPONSE_FINAL));
        stream_close(stream);
    }
}

void flight_unref(Flight *flight)
{
    if (__atomic_sub_fetch(&flight->refs, 1, __ATOMIC_ACQ_REL))
        return;
    for (uint32_t i = 0; i < flight->count; i++) {
        Receiver *to = &flight->streams[i].to;
        stream_close(&flight->streams[i]);
        flow_unref(flight->streams[i].flow);
        for (uint32_t k = 0; k < to->requested_count; k++)
            free(to->requested[k]);
        free(to->requested);
        free(to->name);
    }
    free(flight->failure);
    free(flight);
}

/* Returns the flow of a request that another model of ours made with a streaming call, otherwise NULL. */
static Flow *find_flow(TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    triton_error_consume(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        const char *key = "";
        int type = -1;
        const void *value = NULL;
        if (!triton_error_consume(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value)) &&
            type == PARAMETER_STRING && strcmp(key, HANDLE_PARAMETER) == 0)
            return flow_find(value);
    }
    return NULL;
}

/* Copy what is needed to answer a request after its release. */
static bool save_request(const Proxy *proxy, Receiver *to, TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    if (triton_error_consume(TRITONBACKEND_ResponseFactoryNew(&to->factory, request))) {
        to->factory = NULL;
        return false;
    }
    to->name = request_given_id(proxy, request);
    triton_error_consume(TRITONBACKEND_RequestOutputCount(request, &count));
    to->requested = calloc(count + 1, sizeof *to->requested);
    for (uint32_t i = 0; i < count && to->requested; i++) {
        const char *name;
        char *copy = triton_error_consume(TRITONBACKEND_RequestOutputName(request, i, &name)) ? NULL : strdup(name);
        if (copy == NULL)
            return false;
        to->requested[to->requested_count++] = copy;
    }
    return to->requested != NULL;
}

Flight *flight_new(const Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count)
{
    Flight *flight = calloc(1, sizeof *flight + count * sizeof *flight->streams);
    if (flight == NULL)
        return NULL;
    flight->refs = 1;
    flight->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (!save_request(proxy, &flight->streams[i].to, requests[i])) {
            flight_unref(flight);
            return NULL;
        }
        flight->streams[i].flow = find_flow(requests[i]);
        flight->streams[i].to.is_call = flight->streams[i].flow != NULL;
    }
    return flight;
}

void flight_end(const Proxy *proxy, Flight *flight, TRITONSERVER_Error_Code code, const char *text, bool names)
{
    for (uint32_t i = 0; i < flight->count; i++) {
        Stream *stream = &flight->streams[i];
        if (stream->to.factory == NULL)
            continue;
        if (text)
            stream_set_failed(stream);
        if (text && !response_client_is_gone(stream->to.factory)) {
            response_send_error(proxy, &stream->to, code, text, names);
            stream_close(stream);
        } else {
            stream_end(stream);
        }
    }
}
