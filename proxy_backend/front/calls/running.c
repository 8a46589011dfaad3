#include "calls/running.h"

#include "calls/answers.h"
#include "calls/inputs.h"
#include "base/clock.h"
#include "tracing/tracing.h"

/* Of a call's `in_core`. */
enum { PARTS_IN_CORE = 2 };

/* The request has been released, and its last answer delivered. */
static void delete_request(CallParts *parts)
{
    pthread_mutex_lock(&parts->lock);
    TRITONSERVER_InferenceRequest *request = parts->request;
    parts->request = NULL; /* before its deletion: another thread may be about to cancel it */
    pthread_mutex_unlock(&parts->lock);
    api_ignore(triton.InferenceRequestDelete(request), "deleting a request");
}

void running_part_done(CallParts *parts)
{
    if (__atomic_sub_fetch(&parts->in_core, 1, __ATOMIC_ACQ_REL) == 0) {
        if (parts->released)
            delete_request(parts);
        sequence_request_done(parts->in_progress);
        parts->in_progress = NULL;
        calls_count(false);
    }
    call_unref(&parts->call);
}

/* The core's callback, in any thread. The core no longer reads the inputs. A decoupled model may still answer: until
 * its last answer, the request is needed for cancellation.
 */
static void released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    CallParts *parts = userp;
    (void)request;
    if ((flags & RELEASE_ALL) == 0)
        return;
    parts->released = true;
    running_part_done(parts);
}

static bool prepare(CallParts *parts, Problem *problem)
{
    Server *server = calls_settings_of(parts->calls)->server;
    return parts_use_header_id(parts, problem) && inputs_end(parts, problem) &&
        api_succeeded(triton.InferenceRequestSetFlags(parts->request, parts->sequence_flags), problem) &&
        api_succeeded(triton.InferenceRequestSetReleaseCallback(parts->request, released, parts), problem) &&
        api_succeeded(triton.InferenceRequestSetResponseCallback(
                          parts->request, server->allocator, parts, answers_complete, parts),
            problem);
}

/* With the lock held. The core would ignore a cancellation before it owns the request; afterwards there is nothing to
 * cancel.
 */
static void tell_cancelled(CallParts *parts)
{
    if (parts->cancelled && parts->started && parts->request)
        api_ignore(triton.InferenceRequestCancel(parts->request), "cancelling a request");
}

static TraceRecord *begin_trace(
    const CallParts *parts, const CallsSettings *settings, TRITONSERVER_InferenceTrace **trace)
{
    TraceRecord *record =
        tracing_begin(settings->tracing, parts->model, (TraceHeaders){parts->trace_parent, parts->trace_state}, trace);
    if (record && parts->taken_ns) {
        trace_event(record, settings->steps->receive_start, parts->taken_ns);
        trace_event(record, settings->steps->receive_end, clock_ns());
    }
    return record;
}

bool call_start(Call *call, CallAnswered answered, Problem *problem)
{
    CallParts *parts = parts_of(call);
    if (parts->request == NULL)
        return problem_set(problem, PROBLEM_INTERNAL, "a call was started without a model");
    if (!prepare(parts, problem))
        return false;
    Server *server = calls_settings_of(parts->calls)->server;
    if (parts->sequence &&
        !sequence_request(server, parts->model, parts->sequence, parts->sequence_flags, &parts->in_progress))
        return problem_set(problem, PROBLEM_ELSEWHERE,
            "another server takes this one's place, and could not go on with the sequence: begin it once more");
    parts->answered = answered;
    const CallsSettings *settings = calls_settings_of(parts->calls);
    CachedResponse *cached = parts->key.used ? response_cache_find(settings->cache, &parts->key) : NULL;
    if (cached) {
        answers_give_cached(parts, cached);
        return true;
    }
    parts->in_core = PARTS_IN_CORE;
    /* Two for the core, and one for the duration of this function: the caller's may be dropped in `answered`. */
    __atomic_add_fetch(&parts->refs, PARTS_IN_CORE + 1, __ATOMIC_RELAXED);
    calls_count(true);
    TRITONSERVER_InferenceTrace *trace = NULL;
    if (settings->tracing)
        parts->trace = begin_trace(parts, settings, &trace);
    TRITONSERVER_InferenceRequest *request = parts->request;
    bool taken = api_succeeded(triton.ServerInferAsync(settings->server->server, request, trace), problem);
    if (taken) {
        pthread_mutex_lock(&parts->lock);
        parts->started = true;
        tell_cancelled(parts);
        pthread_mutex_unlock(&parts->lock);
    } else {
        if (parts->trace)
            trace_refused(parts->trace);
        running_part_done(parts);
        running_part_done(parts);
    }
    call_unref(call);
    return taken;
}

void call_sends(Call *call)
{
    CallParts *parts = parts_of(call);
    if (parts->trace && !parts->sending) {
        parts->sending = true;
        trace_event(parts->trace, calls_settings_of(parts->calls)->steps->send_start, clock_ns());
    }
}

void call_cancel(Call *call)
{
    CallParts *parts = parts_of(call);
    pthread_mutex_lock(&parts->lock);
    if (!parts->cancelled) {
        parts->cancelled = true;
        tell_cancelled(parts);
    }
    pthread_mutex_unlock(&parts->lock);
}
