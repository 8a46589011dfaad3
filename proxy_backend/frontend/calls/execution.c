#include "calls/execution.h"

#include "calls/responses.h"
#include "calls/inputs.h"
#include "common/clock.h"
#include "tracing/tracing.h"

/* The initial value of a call's `in_core`. */
enum { PARTS_IN_CORE = 2 };

/* Delete the request after its release and its last answer. */
static void delete_request(CallState *state)
{
    pthread_mutex_lock(&state->lock);
    TRITONSERVER_InferenceRequest *request = state->request;
    state->request = NULL; /* Reset the pointer first: another thread may be about to cancel the request. */
    pthread_mutex_unlock(&state->lock);
    api_ignore(triton.InferenceRequestDelete(request), "deleting a request");
}

void call_part_done(CallState *state)
{
    if (__atomic_sub_fetch(&state->in_core, 1, __ATOMIC_ACQ_REL) == 0) {
        if (state->released)
            delete_request(state);
        sequence_request_done(state->in_progress);
        state->in_progress = NULL;
        calls_count(false);
    }
    call_unref(&state->call);
}

/* The core's callback when it no longer reads the inputs, in any thread. A decoupled model may still answer. Until its
 * last answer, the request is kept for cancellation.
 */
static void on_request_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    CallState *state = userp;
    (void)request;
    if ((flags & RELEASE_ALL) == 0)
        return;
    state->released = true;
    call_part_done(state);
}

static bool prepare(CallState *state, Problem *problem)
{
    Server *server = calls_settings_of(state->calls)->server;
    return call_state_use_header_id(state, problem) && inputs_end(state, problem) &&
        api_succeeded(triton.InferenceRequestSetFlags(state->request, state->sequence_flags), problem) &&
        api_succeeded(triton.InferenceRequestSetReleaseCallback(state->request, on_request_released, state), problem) &&
        api_succeeded(triton.InferenceRequestSetResponseCallback(
                          state->request, server->allocator, state, responses_complete, state),
            problem);
}

/* Cancel the request in the core, if it has it. Before the core owns the request, it ignores a cancellation. The
 * caller holds the lock.
 */
static void forward_cancellation(CallState *state)
{
    if (state->cancelled && state->started && state->request)
        api_ignore(triton.InferenceRequestCancel(state->request), "cancelling a request");
}

static TraceRecord *begin_trace(
    const CallState *state, const CallsSettings *settings, TRITONSERVER_InferenceTrace **trace)
{
    TraceRecord *record =
        tracing_begin(settings->tracing, state->model, (TraceHeaders){state->trace_parent, state->trace_state}, trace);
    if (record && state->taken_ns) {
        trace_event(record, settings->steps->receive_start, state->taken_ns);
        trace_event(record, settings->steps->receive_end, clock_ns());
    }
    return record;
}

bool call_start(Call *call, CallOnResponse on_response, Problem *problem)
{
    CallState *state = call_state(call);
    if (state->request == NULL)
        return problem_set(problem, PROBLEM_INTERNAL, "a call was started without a model");
    if (!prepare(state, problem))
        return false;
    Server *server = calls_settings_of(state->calls)->server;
    if (state->sequence &&
        !sequence_request(server, state->model, state->sequence, state->sequence_flags, &state->in_progress))
        return problem_set(problem, PROBLEM_ELSEWHERE,
            "another server is replacing this one and could not continue the sequence: begin it again");
    state->on_response = on_response;
    const CallsSettings *settings = calls_settings_of(state->calls);
    CachedResponse *cached = state->key.used ? response_cache_find(settings->cache, &state->key) : NULL;
    if (cached) {
        responses_deliver_cached(state, cached);
        return true;
    }
    state->in_core = PARTS_IN_CORE;
    /* The core gets two references. The third is for this function, since `on_response` may drop the caller's. */
    __atomic_add_fetch(&state->refs, PARTS_IN_CORE + 1, __ATOMIC_RELAXED);
    calls_count(true);
    TRITONSERVER_InferenceTrace *trace = NULL;
    if (settings->tracing)
        state->trace = begin_trace(state, settings, &trace);
    TRITONSERVER_InferenceRequest *request = state->request;
    bool taken = api_succeeded(triton.ServerInferAsync(settings->server->server, request, trace), problem);
    if (taken) {
        pthread_mutex_lock(&state->lock);
        state->started = true;
        forward_cancellation(state);
        pthread_mutex_unlock(&state->lock);
    } else {
        if (state->trace)
            trace_refused(state->trace);
        call_part_done(state);
        call_part_done(state);
    }
    call_unref(call);
    return taken;
}

void call_trace_send_start(Call *call)
{
    CallState *state = call_state(call);
    if (state->trace && !state->sending) {
        state->sending = true;
        trace_event(state->trace, calls_settings_of(state->calls)->steps->send_start, clock_ns());
    }
}

void call_cancel(Call *call)
{
    CallState *state = call_state(call);
    pthread_mutex_lock(&state->lock);
    if (!state->cancelled) {
        state->cancelled = true;
        forward_cancellation(state);
    }
    pthread_mutex_unlock(&state->lock);
}
