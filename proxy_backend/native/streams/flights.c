#define _GNU_SOURCE
#include "streams/flights.h"

#include "streams/endings.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

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
        failed(TRITONBACKEND_ResponseFactoryDelete(stream->to.factory));
    stream->to.factory = NULL;
}

void stream_end(Stream *stream)
{
    if (stream->to.factory && is_gone(stream->to.factory)) {
        end_later(stream->to.factory);
        stream->to.factory = NULL;
    } else if (stream->to.factory) {
        failed(TRITONBACKEND_ResponseFactorySendFlags(stream->to.factory, RESPONSE_FINAL));
        stream_close(stream);
    }
}

void flight_let_go(Flight *flight)
{
    if (__atomic_sub_fetch(&flight->holders, 1, __ATOMIC_ACQ_REL))
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

/* Returns the flow of a request that another model of ours made; NULL if there is none. */
static Flow *flow_of(TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    failed(TRITONBACKEND_RequestParameterCount(request, &count));
    for (uint32_t i = 0; i < count; i++) {
        const char *key = "";
        int type = -1;
        const void *value = NULL;
        if (!failed(TRITONBACKEND_RequestParameter(request, i, &key, &type, &value)) && type == PARAMETER_STRING &&
            strcmp(key, HANDLE_PARAMETER) == 0)
            return flow_find(value);
    }
    return NULL;
}

/* Save the data of a request that its answers need. */
static bool remember(const Proxy *proxy, Receiver *to, TRITONBACKEND_Request *request)
{
    uint32_t count = 0;
    if (failed(TRITONBACKEND_ResponseFactoryNew(&to->factory, request))) {
        to->factory = NULL;
        return false;
    }
    to->name = given_name(proxy, request);
    failed(TRITONBACKEND_RequestOutputCount(request, &count));
    to->requested = calloc(count + 1, sizeof *to->requested);
    for (uint32_t i = 0; i < count && to->requested; i++) {
        const char *name;
        char *copy = failed(TRITONBACKEND_RequestOutputName(request, i, &name)) ? NULL : strdup(name);
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
    flight->holders = 1;
    flight->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (!remember(proxy, &flight->streams[i].to, requests[i])) {
            flight_let_go(flight);
            return NULL;
        }
        flight->streams[i].flow = flow_of(requests[i]);
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
        if (text && !is_gone(stream->to.factory)) {
            send_error(proxy, &stream->to, code, text, names);
            stream_close(stream);
        } else {
            stream_end(stream);
        }
    }
}
