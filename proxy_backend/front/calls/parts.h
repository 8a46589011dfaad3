/* A call as the files of calls/ see it. */
#ifndef PYTRITON_FRONT_PARTS_H
#define PYTRITON_FRONT_PARTS_H

#include "memory/arena.h"
#include "calls/call.h"
#include "calls/outputs.h"
#include "calls/pool.h"
#include "calls/response_cache.h"
#include "calls/sequences.h"

/* An answer, and what it needs. */
typedef struct AnswerParts {
    Answer answer; /* first, so that it is found by its address */
    struct AnswerParts *next;
    TRITONSERVER_InferenceResponse *response; /* NULL: there is none */
    CachedResponse *cached; /* what `answer` points into; NULL: nothing */
    Arena memory; /* what `answer` points to that is not the response's */
} AnswerParts;

/* Of trace contexts: "traceparent" has 55 bytes, "tracestate" up to 512. */
enum { TRACE_PARENT = 128, TRACE_STATE = 512, HEADER_ID = 256 };

typedef struct CallParts {
    Call call; /* first, so that it is found by its address */
    struct CallParts *next; /* of the pool's */
    Calls *calls;
    unsigned refs;
    /* The request. */
    const char *model, *id; /* copies, in `memory` */
    const char *sequence; /* its id, in `memory`; NULL: the request belongs to none */
    uint32_t sequence_flags;
    Sequence *in_progress; /* while the core has the request; NULL: it belongs to no sequence */
    size_t input_room, output_room, parameter_count;
    uint64_t input_elements; /* of BYTES, so far, of the input that was begun last */
    CacheKey key; /* of its answer in the response cache */
    bool raw, open; /* there is a raw input; an input has been begun and not ended */
    Arena memory;
    char trace_parent[TRACE_PARENT], trace_state[TRACE_STATE + 1], header_id[HEADER_ID];
    bool id_from_header; /* its client gave it none, but a header did */
    TraceRecord *trace; /* NULL: it is not traced */
    uint64_t taken_ns; /* 0: nothing was traced then */
    bool sending;
    CallAnswered answered;
    unsigned in_core; /* what the core still has of it: its request, its answers */
    pthread_mutex_t lock; /* guards all that follows */
    TRITONSERVER_InferenceRequest *request; /* the core's as soon as it has started; NULL: none, or it is over */
    bool started, cancelled, released;
    AnswerParts *queue, **last; /* answers that came while another one was being given */
    bool giving;
    AnswerParts *spare;
    AnswerParts last_resort; /* the last answer, where there is no memory for one */
    bool lost;               /* there was none for an answer */
    OutputMemory outputs;
} CallParts;

static inline CallParts *parts_of(Call *call)
{
    return (CallParts *)call;
}

/* What a part of a request is, in the key of its answer. */
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

/* A copy with NUL at its end, in the call's memory. NULL, with the problem: it has NUL in it, is no valid UTF-8, or there is no memory.
 * `what`: "the name of an input". */
const char *parts_copy(CallParts *parts, Slice text, const char *what, Problem *problem);
/* Give a request without an id that of its headers, if they have one. */
bool parts_use_header_id(CallParts *parts, Problem *problem);
/* "[request id: 7] ", as the core begins its errors. */
const char *parts_id(const CallParts *parts);
/* One more of `count` in an array with room for `*room`; all zero. */
CallTensor *parts_add_tensor(CallTensor **tensors, size_t *count, size_t *room, const char *name);

#endif
