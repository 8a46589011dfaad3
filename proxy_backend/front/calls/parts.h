/* The internals of a call, for the files of calls/. */
#ifndef PYTRITON_FRONT_PARTS_H
#define PYTRITON_FRONT_PARTS_H

#include "memory/arena.h"
#include "calls/call.h"
#include "calls/outputs.h"
#include "calls/pool.h"
#include "calls/response_cache.h"
#include "calls/sequences.h"

/* An answer with its resources. */
typedef struct AnswerParts {
    Answer answer; /* first, so that its address is the object's */
    struct AnswerParts *next;
    TRITONSERVER_InferenceResponse *response; /* NULL: none */
    CachedResponse *cached; /* what `answer` points into; NULL: nothing */
    Arena memory; /* data of `answer` that is not the response's */
} AnswerParts;

/* Of trace contexts: "traceparent" has 55 bytes, "tracestate" up to 512. */
enum { TRACE_PARENT = 128, TRACE_STATE = 512, HEADER_ID = 256 };

typedef struct CallParts {
    Call call; /* first, so that its address is the object's */
    struct CallParts *next; /* in the pool's list */
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
    CallAnswered answered;
    unsigned in_core; /* what the core still has: its request, its answers */
    pthread_mutex_t lock; /* guards everything below */
    TRITONSERVER_InferenceRequest *request; /* the core's once it has started; NULL: none, or it is over */
    bool started, cancelled, released;
    AnswerParts *queue, **last; /* answers that arrived while another one was being delivered */
    bool giving;
    AnswerParts *spare;
    AnswerParts last_resort; /* used for the last answer if there is no memory for one */
    bool lost;               /* an answer was lost for lack of memory */
    OutputMemory outputs;
} CallParts;

static inline CallParts *parts_of(Call *call)
{
    return (CallParts *)call;
}

/* The tags of a request's parts in the key of its answer. */
enum { KEY_PARAMETER = 'p', KEY_INPUT = 'i', KEY_INPUT_END = 'e', KEY_OUTPUT = 'o' };
static inline void parts_key(CallParts *parts, const void *bytes, size_t size)
{
    if (parts->key.used)
        digest_put(&parts->key.digest, bytes, size);
}
static inline void parts_key_name(CallParts *parts, char what, const char *name)
{
    if (parts->key.used) {
        digest_put(&parts->key.digest, &what, 1);
        digest_put_text(&parts->key.digest, slice_of(name));
    }
}

/* Copy a text with a terminating NUL to the call's memory. Returns NULL with the problem: it contains NUL, is not
 * UTF-8, or there is no memory. `what`: "the name of an input".
 */
const char *parts_copy(CallParts *parts, Slice text, const char *what, Problem *problem);
/* Use the id of its headers, if any, for a request without an id. */
bool parts_use_header_id(CallParts *parts, Problem *problem);
/* Returns "[request id: 7] ", which begins the core's errors. */
const char *parts_id(const CallParts *parts);
/* Append to an array of `count` with room for `*room`. Returns the element, all zero. */
CallTensor *parts_add_tensor(CallTensor **tensors, size_t *count, size_t *room, const char *name);

#endif
