#define _GNU_SOURCE
#include "calls/call.h"

#include "triton/errors.h"

#include <stdlib.h>

void calls_unref(Calls *calls)
{
    if (__atomic_sub_fetch(&calls->refs, 1, __ATOMIC_ACQ_REL))
        return;
    call_connection_free(calls->connection);
    pthread_mutex_destroy(&calls->lock);
    pthread_mutex_destroy(&calls->slots.lock);
    buffer_free(&calls->reported_models);
    free(calls->worker);
    free(calls->endpoint);
    free(calls->name);
    free(calls);
}

void call_unref(Call *call)
{
    if (__atomic_sub_fetch(&call->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (call->request)
        triton_error_consume(TRITONSERVER_InferenceRequestDelete(call->request));
    if (call->flow)
        flow_end(call->flow);
    flow_unref(call->flow);
    calls_unref(call->calls);
    free(call->inputs);
    free(call->model);
    free(call);
}
