#include "calls/pool.h"

#include "background/memory.h"
#include "base/clock.h"
#include "calls/parts.h"
#include "net/limits.h"

#include <stdlib.h>

/* Defaults of the settings. */
#define OUTPUT_BYTES ((uint64_t)8 << 30)
enum { INPUTS = 1024, KEPT_BYTES = 128 << 10, KEPT_CALLS = 256 };
enum { RESERVED_CALLS = 8 }; /* kept even if unused for long */

struct Calls {
    Reserve reserve; /* first, so that its address is the object's */
    CallsSettings settings;
    size_t state_size;
    pthread_mutex_t lock;
    CallParts *free; /* guarded by the lock, like the rest */
    uint64_t free_count, used_count;
    uint64_t unneeded; /* how many were free all the time since the last check */
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

static bool drop_unneeded(Reserve *reserve);

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
    calls->reserve.drop = drop_unneeded;
    memory_add(&calls->reserve);
    return calls;
}

static void parts_free(CallParts *parts)
{
    text_free(&parts->call.body);
    text_free(&parts->call.reply);
    free(parts->call.state);
    free(parts->call.inputs);
    free(parts->call.outputs);
    arena_free(&parts->memory);
    outputs_reset(&parts->outputs, 0);
    for (AnswerParts *spare = parts->spare, *next; spare; spare = next) {
        next = spare->next;
        arena_free(&spare->memory);
        free(spare);
    }
    pthread_mutex_destroy(&parts->lock);
    free(parts);
}

static void free_all(CallParts *list)
{
    for (CallParts *parts = list, *next; parts; parts = next) {
        next = parts->next;
        parts_free(parts);
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
    memory_remove(&calls->reserve);
    pthread_mutex_lock(&calls->lock);
    calls->closed = true;
    bool last = calls->used_count == 0;
    pthread_mutex_unlock(&calls->lock);
    if (last)
        pool_free(calls);
}

/* The most recently used call is taken first, so unneeded ones come last. */
static bool drop_unneeded(Reserve *reserve)
{
    Calls *calls = (Calls *)reserve;
    pthread_mutex_lock(&calls->lock);
    uint64_t stay = calls->free_count - calls->unneeded;
    if (stay < RESERVED_CALLS)
        stay = RESERVED_CALLS;
    CallParts **end = &calls->free;
    for (uint64_t i = 0; i < stay && *end; i++)
        end = &(*end)->next;
    CallParts *dropped = *end;
    *end = NULL;
    if (calls->free_count > stay)
        calls->free_count = stay;
    calls->unneeded = calls->free_count;
    bool more = calls->free_count > RESERVED_CALLS;
    pthread_mutex_unlock(&calls->lock);
    free_all(dropped);
    return more;
}

static CallParts *parts_new(Calls *calls)
{
    CallParts *parts = calloc(1, sizeof *parts);
    if (parts == NULL)
        return NULL;
    parts->calls = calls;
    parts->call.state = calloc(1, calls->state_size ? calls->state_size : 1);
    if (parts->call.state == NULL || pthread_mutex_init(&parts->lock, NULL) != 0) {
        free(parts->call.state);
        free(parts);
        return NULL;
    }
    return parts;
}

Call *calls_take(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    CallParts *parts = calls->free;
    if (parts) {
        calls->free = parts->next;
        calls->free_count--;
        if (calls->unneeded > calls->free_count)
            calls->unneeded = calls->free_count;
    }
    calls->used_count++;
    pthread_mutex_unlock(&calls->lock);
    if (parts == NULL && (parts = parts_new(calls)) == NULL) {
        pthread_mutex_lock(&calls->lock);
        calls->used_count--;
        pthread_mutex_unlock(&calls->lock);
        return NULL;
    }
    parts->next = NULL;
    parts->last = &parts->queue;
    parts->taken_ns = calls->settings.tracing && tracing_any(calls->settings.tracing) ? clock_ns() : 0;
    __atomic_store_n(&parts->refs, 1, __ATOMIC_RELAXED);
    return &parts->call;
}

uint64_t calls_kept(Calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    uint64_t count = calls->free_count;
    pthread_mutex_unlock(&calls->lock);
    return count;
}

static void let_go_of_regions(CallTensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++)
        shared_region_unref(tensors[i].region);
}

/* One answer's memory stays; a model that answered many times needed more. */
static void drop_spares(CallParts *parts, size_t kept)
{
    AnswerParts *first = parts->spare;
    if (first == NULL)
        return;
    for (AnswerParts *spare = first->next, *next; spare; spare = next) {
        next = spare->next;
        arena_free(&spare->memory);
        free(spare);
    }
    first->next = NULL;
    arena_reset(&first->memory, kept);
}

/* Reset a call for its next use. */
static void empty(CallParts *parts)
{
    Call *call = &parts->call;
    size_t kept = parts->calls->settings.kept_bytes;
    if (call->body.room > kept || call->reply.room > kept || parts->outputs.wanted > kept)
        memory_freed();
    if (parts->trace) {
        if (parts->sending)
            trace_event(parts->trace, parts->calls->settings.steps->send_end, clock_ns());
        trace_end(parts->trace);
    }
    if (parts->request)
        api_ignore(triton.InferenceRequestDelete(parts->request), "deleting a request");
    let_go_of_regions(call->inputs, call->input_count);
    let_go_of_regions(call->outputs, call->output_count);
    text_reset(&call->body, kept);
    body_release(&call->counted);
    text_reset(&call->reply, kept);
    arena_reset(&parts->memory, kept);
    outputs_reset(&parts->outputs, kept);
    drop_spares(parts, kept);
    memset(call->state, 0, parts->calls->state_size);
    call->decoupled = parts->raw = parts->open = parts->sending = parts->started = parts->cancelled = parts->released =
        parts->giving = parts->lost = false;
    call->input_count = call->output_count = parts->parameter_count = 0;
    parts->key.used = false;
    parts->model = parts->id = parts->sequence = NULL;
    parts->sequence_flags = parts->in_core = 0;
    parts->trace_parent[0] = parts->trace_state[0] = parts->header_id[0] = '\0';
    parts->id_from_header = false;
    parts->answered = NULL;
    parts->trace = NULL;
    parts->request = NULL;
}

void calls_give_back(CallParts *parts)
{
    Calls *calls = parts->calls;
    empty(parts);
    pthread_mutex_lock(&calls->lock);
    bool stays = !calls->closed && calls->free_count < calls->settings.kept_calls;
    if (stays) {
        parts->next = calls->free;
        calls->free = parts;
        calls->free_count++;
    }
    calls->used_count--;
    bool last = calls->closed && calls->used_count == 0;
    pthread_mutex_unlock(&calls->lock);
    if (!stays) {
        parts_free(parts);
        memory_freed();
    }
    if (last)
        pool_free(calls);
}
