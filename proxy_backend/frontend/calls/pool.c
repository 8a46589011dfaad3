#include "calls/pool.h"

#include "thread_pool/memory_trim.h"
#include "common/clock.h"
#include "calls/call_internal.h"
#include "net/limits.h"

#include <stdlib.h>

/* Default limits. */
#define OUTPUT_BYTES ((uint64_t)8 << 30)
enum { INPUTS = 1024, KEPT_BYTES = 128 << 10, KEPT_CALLS = 256 };
enum { RESERVED_CALLS = 8 }; /* number of calls that are kept even if they are unused for long */

struct Calls {
    TrimHook trim_hook; /* first, so that both have the same address */
    CallsSettings settings;
    size_t state_size;
    pthread_mutex_t lock;
    CallState *free; /* guarded by the lock, like all fields below */
    uint64_t free_count, used_count;
    uint64_t unneeded; /* number of calls that were unused during the whole time since the last check */
    bool closed;
};

static uint64_t running;

uint64_t calls_running(void)
{
    return __atomic_load_n(&running, __ATOMIC_ACQUIRE);
}

void calls_count(bool more)
{
    __atomic_add_fetch(&running, more ? 1 : (uint64_t)-1, __ATOMIC_ACQ_REL);
}

CallsSettings calls_settings(Server *server, SharedMemory *shared_memory)
{
    return (CallsSettings){.server = server,
        .shared_memory = shared_memory,
        .inputs = INPUTS,
        .output_bytes = OUTPUT_BYTES,
        .kept_bytes = KEPT_BYTES,
        .kept_calls = KEPT_CALLS};
}

const CallsSettings *calls_settings_of(const Calls *calls)
{
    return &calls->settings;
}

static bool drop_unneeded(TrimHook *trim_hook);

Calls *calls_new(const CallsSettings *settings, size_t state_size, Problem *problem)
{
    if (!outputs_prepare(settings->server, problem))
        return NULL;
    Calls *calls = calloc(1, sizeof *calls);
    if (calls == NULL || pthread_mutex_init(&calls->lock, NULL) != 0) {
        free(calls);
        problem_no_memory(problem);
        return NULL;
    }
    calls->settings = *settings;
    calls->state_size = state_size;
    calls->trim_hook.drop = drop_unneeded;
    memory_trim_register(&calls->trim_hook);
    return calls;
}

static void parts_free(CallState *state)
{
    buffer_free(&state->call.body);
    buffer_free(&state->call.reply);
    free(state->call.state);
    free(state->call.inputs);
    free(state->call.outputs);
    arena_free(&state->memory);
    outputs_reset(&state->outputs, 0);
    for (ResponseState *spare = state->spare, *next; spare; spare = next) {
        next = spare->next;
        arena_free(&spare->memory);
        free(spare);
    }
    pthread_mutex_destroy(&state->lock);
    free(state);
}

static void free_all(CallState *list)
{
    for (CallState *state = list, *next; state; state = next) {
        next = state->next;
        parts_free(state);
    }
}

static void pool_free(Calls *calls)
{
    free_all(calls->free);
    pthread_mutex_destroy(&calls->lock);
    free(calls);
}

void calls_free(Calls *calls)
{
    if (calls == NULL)
        return;
    memory_trim_unregister(&calls->trim_hook);
    pthread_mutex_lock(&calls->lock);
    calls->closed = true;
    bool last = calls->used_count == 0;
    pthread_mutex_unlock(&calls->lock);
    if (last)
        pool_free(calls);
}

/* Free the unneeded calls. They are at the end of the list, because the most recently used call is taken first. */
static bool drop_unneeded(TrimHook *trim_hook)
{
    Calls *calls = (Calls *)trim_hook;
    pthread_mutex_lock(&calls->lock);
    uint64_t stay = calls->free_count - calls->unneeded;
    if (stay < RESERVED_CALLS)
        stay = RESERVED_CALLS;
    CallState **end = &calls->free;
    for (uint64_t i = 0; i < stay && *end; i++)
        end = &(*end)->next;
    CallState *dropped = *end;
    *end = NULL;
    if (calls->free_count > stay)
        calls->free_count = stay;
    calls->unneeded = calls->free_count;
    bool more = calls->free_count > RESERVED_CALLS;
    pthread_mutex_unlock(&calls->lock);
    free_all(dropped);
    return more;
}

static CallState *parts_new(Calls *calls)
{
    CallState *state = calloc(1, sizeof *state);
    if (state == NULL)
        return NULL;
    state->calls = calls;
    state->call.state = calloc(1, calls->state_size ? calls->state_size : 1);
    if (state->call.state == NULL || pthread_mutex_init(&state->lock, NULL) != 0) {
        free(state->call.state);
        free(state);
        return NULL;
    }
    return state;
}

Call *calls_acquire(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    CallState *state = calls->free;
    if (state) {
        calls->free = state->next;
        calls->free_count--;
        if (calls->unneeded > calls->free_count)
            calls->unneeded = calls->free_count;
    }
    calls->used_count++;
    pthread_mutex_unlock(&calls->lock);
    if (state == NULL && (state = parts_new(calls)) == NULL) {
        pthread_mutex_lock(&calls->lock);
        calls->used_count--;
        pthread_mutex_unlock(&calls->lock);
        return NULL;
    }
    state->next = NULL;
    state->last = &state->queue;
    state->taken_ns = calls->settings.tracing && tracing_any(calls->settings.tracing) ? clock_ns() : 0;
    __atomic_store_n(&state->refs, 1, __ATOMIC_RELAXED);
    return &state->call;
}

uint64_t calls_idle(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    uint64_t count = calls->free_count;
    pthread_mutex_unlock(&calls->lock);
    return count;
}

static void release_regions(CallTensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        shared_region_unref(tensors[i].region);
}

/* Keep the memory of one answer. A model that answered many times needed more. */
static void drop_spares(CallState *state, size_t kept)
{
    ResponseState *first = state->spare;
    if (first == NULL)
        return;
    for (ResponseState *spare = first->next, *next; spare; spare = next) {
        next = spare->next;
        arena_free(&spare->memory);
        free(spare);
    }
    first->next = NULL;
    arena_reset(&first->memory, kept);
}

/* Reset a call for its next use. */
static void reset_call(CallState *state)
{
    Call *call = &state->call;
    size_t kept = state->calls->settings.kept_bytes;
    if (call->body.room > kept || call->reply.room > kept || state->outputs.wanted > kept)
        memory_trim_notify();
    if (state->trace) {
        if (state->sending)
            trace_event(state->trace, state->calls->settings.steps->send_end, clock_ns());
        trace_end(state->trace);
    }
    if (state->request)
        api_ignore(triton.InferenceRequestDelete(state->request), "deleting a request");
    release_regions(call->inputs, call->input_count);
    release_regions(call->outputs, call->output_count);
    buffer_reset(&call->body, kept);
    body_release(&call->counted);
    buffer_reset(&call->reply, kept);
    arena_reset(&state->memory, kept);
    outputs_reset(&state->outputs, kept);
    drop_spares(state, kept);
    memset(call->state, 0, state->calls->state_size);
    call->decoupled = state->raw = state->open = state->sending = state->started = state->cancelled = state->released =
        state->is_delivering = state->lost = false;
    call->input_count = call->output_count = state->parameter_count = 0;
    state->key.used = false;
    state->model = state->id = state->sequence = NULL;
    state->sequence_flags = state->in_core = 0;
    state->trace_parent[0] = state->trace_state[0] = state->header_id[0] = '\0';
    state->id_from_header = false;
    state->on_response = NULL;
    state->trace = NULL;
    state->request = NULL;
}

void calls_release(CallState *state)
{
    Calls *calls = state->calls;
    reset_call(state);
    pthread_mutex_lock(&calls->lock);
    bool stays = !calls->closed && calls->free_count < calls->settings.kept_calls;
    if (stays) {
        state->next = calls->free;
        calls->free = state;
        calls->free_count++;
    }
    calls->used_count--;
    bool last = calls->closed && calls->used_count == 0;
    pthread_mutex_unlock(&calls->lock);
    if (!stays) {
        parts_free(state);
        memory_trim_notify();
    }
    if (last)
        pool_free(calls);
}
