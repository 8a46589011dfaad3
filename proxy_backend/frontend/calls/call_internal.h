/* The internals of a call. Only for the files of this directory. */
#ifndef PYTRITON_FRONTEND_CALLS_CALL_INTERNAL_H
#define PYTRITON_FRONTEND_CALLS_CALL_INTERNAL_H

#include "memory/arena.h"
#include "calls/call.h"
#include "calls/outputs.h"
#include "calls/pool.h"
#include "calls/response_cache.h"
#include "calls/sequences.h"

/* An answer and the resources that it owns. */
typedef struct ResponseState {
    CallResponse response; /* first, so that both have the same address */
    struct ResponseState *next;
    TRITONSERVER_InferenceResponse *core_response; /* NULL if the core has not answered */
    CachedResponse *cached; /* the cached response that `response` refers to, or NULL */
    Arena memory; /* further data that `response` refers to */
} ResponseState;

/* Maximum sizes of trace contexts: "traceparent" has 55 bytes, "tracestate" up to 512. */
enum { TRACE_PARENT = 128, TRACE_STATE = 512, HEADER_ID = 256 };

typedef struct CallState {
    Call call; /* first, so that both have the same address */
    struct CallState *next; /* next in the pool's list */
    Calls *calls;
    unsigned refs;
    /* Parts of the request. */
    const char *model, *id; /* copies, in `memory` */
    const char *sequence; /* its sequence id, in `memory`; NULL without one */
    uint32_t sequence_flags;
    Sequence *in_progress; /* the sequence it belongs to while the core has the request, or NULL */
    size_t input_room, output_room, parameter_count;
    uint64_t input_elements; /* number of BYTES elements in the current input so far */
    CacheKey key; /* key of its answer in the response cache */
    bool raw, open; /* the request has a raw input; the current input is not complete */
    Arena memory;
    char trace_parent[TRACE_PARENT], trace_state[TRACE_STATE + 1], header_id[HEADER_ID];
    bool id_from_header; /* its id was taken from a header */
    TraceRecord *trace; /* NULL if it is not traced */
    uint64_t taken_ns; /* when the call was acquired; 0 if nothing was traced then */
    bool sending;
    CallOnResponse on_response;
    unsigned in_core; /* what the core still holds: the request, and answers that follow */
    pthread_mutex_t lock; /* guards everything below */
    TRITONSERVER_InferenceRequest *request; /* the core's request while it can be cancelled, otherwise NULL */
    bool started, cancelled, released;
    ResponseState *queue, **last; /* answers that arrived while another one was being delivered */
    bool is_delivering;
    ResponseState *spare;
    ResponseState last_resort; /* reserved for an error answer without memory */
    bool lost;               /* an answer was lost because memory was lacking */
    OutputMemory outputs;
} CallState;

static inline CallState *call_state(Call *call)
{
    return (CallState *)call;
}

/* Tags of a request's parts in its cache key. */
enum { KEY_PARAMETER = 'p', KEY_INPUT = 'i', KEY_INPUT_END = 'e', KEY_OUTPUT = 'o' };
static inline void call_state_key(CallState *state, const void *bytes, size_t size)
{
    if (state->key.used)
        digest_put(&state->key.digest, bytes, size);
}
static inline void call_state_key_name(CallState *state, char what, const char *name)
{
    if (state->key.used) {
        digest_put(&state->key.digest, &what, 1);
        digest_put_text(&state->key.digest, slice_of(name));
    }
}

/* Copy a text to the call's memory and terminate it by NUL. Returns NULL with a problem if the text contains NUL, is
 * not UTF-8, or memory is lacking. `what` is for the problem, such as "the name of an input".
 */
const char *call_state_copy(CallState *state, Slice text, const char *what, Problem *problem);
/* For a request without an id, use the one from its headers, if any. */
bool call_state_use_header_id(CallState *state, Problem *problem);
/* Returns "[request id: 7] ", with which the core's errors begin. */
const char *call_state_id(const CallState *state);
/* Append a zeroed element to an array of `count` elements with room for `*room`, and return it. */
CallTensor *call_state_add_tensor(CallTensor **tensors, size_t *count, size_t *room, const char *name);

#endif
