/* One inference, for HTTP and gRPC alike: from what a client asked to the answers of the core.
 *
 * Its life: calls_take ▶ call_model ▶ call_input ... call_output ... ▶ call_start ▶ `answered`, once or several times ▶ call_unref.
 *
 * References. Whoever took the call has one, until he has no more use for it. The core has one until it has released the request and
 * has given its last response; each answer has one until answer_release. So a connection may go on with its next request, with another
 * call, while the core still reads the inputs of this one. After the last reference the call is used again, with its memory.
 *
 * Threads. Until call_start returns, a call is its owner's, but for `answered`, which may be called before that, in the same thread
 * or in another. Functions that any thread may call say so.
 */
#ifndef PYTRITON_FRONT_CALL_H
#define PYTRITON_FRONT_CALL_H

#include "base/text.h"
#include "calls/shared_memory.h"
#include "net/limits.h"
#include "tracing/tracing.h"
#include "core/server.h"

typedef struct Calls Calls;
typedef struct Answer Answer;
typedef struct ResponseCache ResponseCache;

/* What all pools of calls have in common. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing; /* NULL: none */
    ResponseCache *cache; /* NULL: none */
    const TraceSteps *steps; /* the protocol's */
    uint64_t inputs;         /* of one request, and outputs that it asks for, and parameters */
    uint64_t output_bytes;   /* that one call's answers may have at a time */
    uint64_t kept_bytes;     /* of memory that a call keeps for its next use */
    uint64_t kept_calls;     /* that a pool keeps */
} CallsSettings;

/* Defaults of the settings that are numbers. */
CallsSettings calls_settings(Server *server, SharedMemory *shared_memory);

/* An input or an output as a client named it. */
typedef struct {
    const char *name; /* NUL-terminated; valid UTF-8 */
    void *user;       /* the protocol's */
    unsigned flags;   /* the protocol's, of outputs; 0 at first */
    /* Of inputs: */
    DataType datatype;
    const int64_t *shape;
    uint64_t dims, elements;
    uint64_t expected; /* bytes; UINT64_MAX: BYTES, whose elements say it */
    uint64_t given;
    /* Of outputs: */
    uint32_t classes; /* labels of that many largest values are wanted; 0: the values themselves */
    SharedRegion *region; /* where it goes, or comes from; NULL: with the message */
    uint64_t offset, room;
} CallTensor;

typedef struct Call {
    Text
        body; /* the protocol's, for the request's bytes: inputs may lie in it, and it must not change after call_start */
    BodyCount counted; /* of `body` (net/limits.h); released when the call is used again */
    Text reply; /* the protocol's, for what it writes */
    void *state; /* the protocol's: `state_size` bytes, all zero when the call is taken */
    bool decoupled; /* after call_model: the model may answer any number of times */
    CallTensor *inputs, *outputs;
    size_t input_count, output_count;
} Call;

/* Called with an answer, one after the other and in order, in any thread: the core's, a model's, or the one that is in call_start. It is the last one if
 * `answer->final`. The answer is the callee's: answer_release. */
typedef void (*CallAnswered)(Call *call, Answer *answer);

/* ── pools ──────────────────────────────────────────────────────────────────────────────────────── */

/* `state_size`: of what the protocol keeps in each call. */
Calls *calls_new(const CallsSettings *settings, size_t state_size, Problem *problem);
/* No call is to be taken any more. The pool goes with its last call. */
void calls_free(Calls *calls);
/* One call with one reference, which is the caller's. NULL: there is no memory. Any thread. */
Call *calls_take(Calls *calls);
/* How many lie there for their next use. Any thread. */
uint64_t calls_kept(Calls *calls);
/* Calls that have been started and whose request or last answer the core still has, in this process. Any thread. */
uint64_t calls_running(void);

Call *call_ref(Call *call);
void call_unref(Call *call);
/* Memory of the call's own until it is used again, aligned for anything, not cleared. NULL: there is none. */
void *call_memory(Call *call, size_t size);

/* ── the request ────────────────────────────────────────────────────────────────────────────────── */

/* The core that it is for. */
Server *call_server(Call *call);
/* Which model. This comes first. `version` "": its policy chooses. The problem: there is none such, or it is not ready; with
 * PROBLEM_AWAITED, nothing has been done with the call, and all may be tried again. */
bool call_model(Call *call, Slice model, Slice version, Problem *problem);
/* Have the call wait for its model, if that is the problem (awaited_wait). True: the waiter has a reference to the call, which `then` gives back. */
bool call_waits(Call *call, Problem *problem, AwaitedBy *waiter, AwaitedThen *then);
bool call_id(Call *call, Slice id, Problem *problem);

/* A parameter of a request. "sequence_id", "sequence_start", "sequence_end", "priority" and "timeout" are what Triton's protocols say they are;
 * what begins with "triton_" is refused; all others are the model's. */
enum { PARAMETER_UNSIGNED = 100 }; /* beside the core's types: a whole number that is too large for PARAMETER_INT */
typedef struct {
    int type; /* PARAMETER_STRING ... PARAMETER_DOUBLE, PARAMETER_UNSIGNED */
    union {
        Slice string;
        int64_t integer;
        uint64_t natural;
        bool boolean;
        double number;
    };
} CallParameter;
bool call_parameter(Call *call, Slice name, const CallParameter *value, Problem *problem);
/* A header that is handed on: a parameter for the model. The names that Triton reads itself, and those that begin with "sequence_" or "triton_",
 * are refused in any case: the model would take them for what the request says. */
bool call_header(Call *call, Slice name, Slice value, Problem *problem);
/* One of the headers that say what a call is, or is part of: "x-request-id", "traceparent", "tracestate". Others are ignored. The first of these that
 * is there gives an id to a request that has none: in logs, traces and errors, not in the answer. */
void call_origin_header(Call *call, Slice name, Slice value);

/* Begin an input. Its data follows: in pieces, or in a region of shared memory; not at all if it is empty. The next call_input, or call_start, ends it,
 * and finds it wrong if its size is not exactly what shape and type say. The shape is copied. */
CallTensor *call_input(Call *call, Slice name, Slice datatype, const int64_t *shape, size_t dims, Problem *problem);
/* The next bytes of the input that was begun last. They stay where they are until the call is used again: they lie in call->body or call_memory.
 * BYTES: elements, each after its size in 4 bytes; none may be cut by a piece's end. */
bool call_input_data(Call *call, const void *bytes, size_t size, Problem *problem);
bool call_input_region(Call *call, Slice region, uint64_t offset, uint64_t size, Problem *problem);
/* The only input, whose name, type and shape are the model's: these bytes. */
bool call_input_raw(Call *call, const void *bytes, size_t size, Problem *problem);

/* An output that is wanted; without any, all are. */
CallTensor *call_output(Call *call, Slice name, Problem *problem);
bool call_output_classes(Call *call, CallTensor *output, int64_t classes, Problem *problem);
bool call_output_region(Call *call, CallTensor *output, Slice region, uint64_t offset, uint64_t size, Problem *problem);

/* Give it to the core. False: it was not taken, and `answered` is not called. */
bool call_start(Call *call, CallAnswered answered, Problem *problem);
/* Nobody waits for its answers: the core is told, once. It is still answered, with an error or not. Any thread, at any time. */
void call_cancel(Call *call);
/* The first bytes of an answer are about to go, says the protocol: for the request's trace. */
void call_sends(Call *call);

/* ── the answers ────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const char *name;
    DataType datatype;
    const int64_t *shape;
    uint64_t dims, elements;
    const void *bytes; /* BYTES: elements, each after its size in 4 bytes */
    size_t size;
    const CallTensor *asked; /* what the client said of it; NULL: nothing */
    bool
        in_region; /* it lies in the region that the client named, and not in the message; `size` bytes of it are used */
} AnswerOutput;

typedef struct {
    const char *name;
    int type;
    union {
        const char *string;
        int64_t integer;
        bool boolean;
        double number;
    };
} AnswerParameter;

struct Answer {
    Problem problem; /* the model's error, or ours; then there is nothing else */
    bool final; /* no other comes */
    bool empty; /* there is none, but that it is final; or all outputs are missing as well */
    const char *model, *id;
    int64_t version;
    const AnswerOutput *outputs;
    size_t output_count;
    const AnswerParameter *parameters;
    size_t parameter_count;
    Call *call;
};

/* Any thread. What it points to is gone then. */
void answer_release(Answer *answer);

#endif
