/* The internals of a call, for the files of calls/. */
#ifndef PYTRITON_FRONTEND_CALLS_CALL_INTERNAL_H
#define PYTRITON_FRONTEND_CALLS_CALL_INTERNAL_H

#include "memory/arena.h"
#include "calls/call.h"
#include "calls/outputs.h"
#include "calls/pool.h"
#include "calls/response_cache.h"
#include "calls/sequences.h"

/* An answer with its resources. */
typedef struct ResponseState {
    CallResponse response; /* first, so that its address is the object's */
    struct ResponseState *next;
    TRITONSERVER_InferenceResponse *core_response; /* NULL: none */
    CachedResponse *cached; /* what `response` points into; NULL: nothing */
    Arena memory; /* data of `response` that is not the response's */
} ResponseState;

/* Of trace contexts: "traceparent" has 55 bytes, "tracestate" up to 512. */
enum { TRACE_PARENT = 128, TRACE_STATE = 512, HEADER_ID = 256 };

typedef struct CallState {
    Call call; /* first, so that its address is the object's */
    struct CallState *next; /* in the pool's list */
    Calls *calls;
    unsigned refs;
    /* The request. */
    const char *model, *id; /* copies, in `memory` */
    const char *sequence; /* its sequence id, in `memory`; NULL: none */
    uint32_t sequence_flags;
    Sequence *in_progress; /* while the core has the request; NULL: not part of a sequence */
    size_t input_room, output_room, parameter_count;
    uint64_t input_elements; /* of BYTES, so far, in the current input */
    CacheKey key; /* of its answer in the response cache */
    bool raw, open; /* there is a raw input; an input has been begun and not ended */
    Arena memory;
    char trace_parent[TRACE_PARENT], trace_state[TRACE_STATE + 1], header_id[HEADER_ID];
    bool id_from_header; /* the client set no id, but a header did */
    TraceRecord *trace; /* NULL: not traced */
    uint64_t taken_ns; /* 0: nothing was traced then */
    bool sending;
    CallOnResponse on_response;
    unsigned in_core; /* what the core still has: its request, its answers */
    pthread_mutex_t lock; /* guards everything below */
    TRITONSERVER_InferenceRequest *request; /* the core's once it has started; NULL: none, or it is over */
    bool started, cancelled, released;
    ResponseState *queue, **last; /* answers that arrived while another one was being delivered */
    bool is_delivering;
    ResponseState *spare;
    ResponseState last_resort; /* used for the last answer if there is no memory for one */
    bool lost;               /* an answer was lost for lack of memory */
    OutputMemory outputs;
} CallState;

static inline CallState *call_state(Call *call)
{
    return (CallState *)call;
}

/* The tags of a request's parts in the key of its answer. */
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

/* Copy a text with a terminating NUL to the call's memory. Returns NULL with the problem: it contains NUL, is not
 * UTF-8, or there is no memory. `what`: "the name of an input".
 */
const char *call_state_copy(CallState *state, Slice text, const char *what, Problem *problem);
/* Use the id of its headers, if any, for a request without an id. */
bool call_state_use_header_id(CallState *state, Problem *problem);
/* Returns "[request id: 7] ", which begins the core's errors. */
const char *call_state_id(const CallState *state);
/* Append to an array of `count` with room for `*room`. Returns the element, all zero. */
CallTensor *call_state_add_tensor(CallTensor **tensors, size_t *count, size_t *room, const char *name);

#endif
