/* One inference, for both HTTP and gRPC: from a client's request to the core's answers.
 *
 * Its life: calls_acquire ▶ call_model ▶ call_input ... call_output ... ▶ call_start ▶ `on_response`, once or several times ▶ call_unref.
 *
 * References. The owner that took the call holds one until it no longer needs the call. The core holds one until it has
 * released the request and delivered its last response; each answer holds one until call_response_release. So a connection may
 * continue with its next request, using another call, while the core still reads the inputs of this one. After the last
 * reference, the call and its memory are reused.
 *
 * Threads. Until call_start returns, only the owner uses a call, except that `on_response` may be called before that, in the
 * same thread or in another. Functions that any thread may call say so.
 */
#ifndef PYTRITON_FRONTEND_CALLS_CALL_H
#define PYTRITON_FRONTEND_CALLS_CALL_H

#include "common/buffer.h"
#include "calls/shared_memory.h"
#include "net/limits.h"
#include "tracing/tracing.h"
#include "core/server.h"

typedef struct Calls Calls;
typedef struct CallResponse CallResponse;
typedef struct ResponseCache ResponseCache;

/* Settings common to all pools of calls. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing; /* NULL: none */
    ResponseCache *cache; /* NULL: none */
    const TraceSteps *steps; /* the protocol's */
    uint64_t inputs;         /* of one request, its requested outputs, and its parameters */
    uint64_t output_bytes;   /* of a call's answers at a time */
    uint64_t kept_bytes;     /* memory that a call keeps for reuse */
    uint64_t kept_calls;     /* calls that a pool keeps */
} CallsSettings;

/* Returns the defaults of the numeric settings. */
CallsSettings calls_settings(Server *server, SharedMemory *shared_memory);

/* An input or output as named by a client. */
typedef struct {
    const char *name; /* NUL-terminated; valid UTF-8 */
    void *user;       /* the protocol's */
    unsigned flags;   /* the protocol's, for outputs; 0 at first */
    /* Of inputs: */
    DataType datatype;
    const int64_t *shape;
    uint64_t dims, elements;
    uint64_t expected; /* bytes; UINT64_MAX: BYTES, whose elements determine it */
    uint64_t given;
    /* Of outputs: */
    uint32_t classes; /* return labels of this many largest values; 0: return the values */
    SharedRegion *region; /* its source or destination; NULL: the message */
    uint64_t offset, room;
} CallTensor;

typedef struct Call {
    Buffer body; /* the protocol's, for the request: inputs point into it; fixed after call_start */
    BodyCount counted; /* of `body` (net/limits.h); released when the call is reused */
    Buffer reply; /* the protocol's, for its output */
    void *state; /* the protocol's: `state_size` bytes, all zero when the call is taken */
    bool decoupled; /* set by call_model: the model may answer any number of times */
    CallTensor *inputs, *outputs;
    size_t input_count, output_count;
} Call;

/* Called with each answer, in order and one at a time, in any thread: the core's, a model's, or the one in
 * call_start. It is the last one if `response->final`. The callee owns the answer: call_response_release.
 */
typedef void (*CallOnResponse)(Call *call, CallResponse *response);

/* ── pools ──────────────────────────────────────────────────────────────────────────────────────── */

/* `state_size`: of the protocol's state in each call. */
Calls *calls_new(const CallsSettings *settings, size_t state_size, Problem *problem);
/* No more calls may be taken. The pool is freed with its last call. */
void calls_free(Calls *calls);
/* Take a call with one reference, which the caller owns. NULL without memory. Any thread. */
Call *calls_acquire(Calls *calls);
/* Returns the number of calls kept for reuse. Any thread. */
uint64_t calls_idle(Calls *calls);
/* Returns the number of calls in this process that have been started and whose request or last answer the core still
 * has. Any thread.
 */
uint64_t calls_running(void);

Call *call_ref(Call *call);
void call_unref(Call *call);
/* Allocate memory that belongs to the call until its reuse, aligned for anything, not cleared. NULL without memory. */
void *call_memory(Call *call, size_t size);

/* ── the request ────────────────────────────────────────────────────────────────────────────────── */

/* Returns the core for the call. */
Server *call_server(Call *call);
/* Set the model, before anything else. `version` "": its policy selects. The problem: there is no such model, or it
 * is not ready; with PROBLEM_MODEL_PENDING, the call is unchanged, and everything may be retried.
 */
bool call_model(Call *call, Slice model, Slice version, Problem *problem);
/* Let the call wait for its model if that is the problem (pending_models_wait). Returns true if it waits: the waiter has a
 * reference to the call, which `then` drops.
 */
bool call_wait_for_model(Call *call, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then);
bool call_id(Call *call, Slice id, Problem *problem);

/* Add a parameter of a request. "sequence_id", "sequence_start", "sequence_end", "priority" and "timeout" have the
 * meaning defined by Triton's protocols; names that begin with "triton_" are refused; all others are the model's.
 */
enum { PARAMETER_UNSIGNED = 100 }; /* in addition to the core's types: an integer too large for PARAMETER_INT */
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
/* Add a forwarded header as a parameter for the model. The names that Triton reads itself, and those that begin with
 * "sequence_" or "triton_", are always refused: the model would mistake them for the request's own.
 */
bool call_header(Call *call, Slice name, Slice value, Problem *problem);
/* Add a tracing header: "x-request-id", "traceparent", "tracestate". Others are ignored. The first of these that is
 * present identifies a request without an id: in logs, traces and errors, not in the answer.
 */
void call_origin_header(Call *call, Slice name, Slice value);

/* Begin an input. Its data follows: in pieces, or in a region of shared memory; none if it is empty. The next
 * call_input, or call_start, ends it, and refuses it if its size is not exactly that of its shape and type. The shape
 * is copied.
 */
CallTensor *call_input(Call *call, Slice name, Slice datatype, const int64_t *shape, size_t dims, Problem *problem);
/* Add bytes to the current input. They must stay unchanged until the call is reused: put them into call->body or
 * call_memory. BYTES: elements, each preceded by its size in 4 bytes; none may be split between pieces.
 */
bool call_input_data(Call *call, const void *bytes, size_t size, Problem *problem);
bool call_input_region(Call *call, Slice region, uint64_t offset, uint64_t size, Problem *problem);
/* Add the only input, whose name, type and shape are the model's, with these bytes. */
bool call_input_raw(Call *call, const void *bytes, size_t size, Problem *problem);

/* Add a requested output; without any, all are returned. */
CallTensor *call_output(Call *call, Slice name, Problem *problem);
bool call_output_classes(Call *call, CallTensor *output, int64_t classes, Problem *problem);
bool call_output_region(Call *call, CallTensor *output, Slice region, uint64_t offset, uint64_t size, Problem *problem);

/* Pass it to the core. Returns false if it was refused; `on_response` is then not called. */
bool call_start(Call *call, CallOnResponse on_response, Problem *problem);
/* The client no longer waits: cancel the request in the core, once. It is still answered, with an error or not. Any
 * thread, at any time.
 */
void call_cancel(Call *call);
/* Record for the request's trace that the first bytes of an answer are about to be sent. */
void call_trace_send_start(Call *call);

/* ── the answers ────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const char *name;
    DataType datatype;
    const int64_t *shape;
    uint64_t dims, elements;
    const void *bytes; /* BYTES: elements, each preceded by its size in 4 bytes */
    size_t size;
    const CallTensor *requested; /* the client's description; NULL: none */
    bool in_region; /* it is in the region that the client named, not in the message, and has `size` bytes */
} ResponseOutput;

typedef struct {
    const char *name;
    int type;
    union {
        const char *string;
        int64_t integer;
        bool boolean;
        double number;
    };
} ResponseParameter;

struct CallResponse {
    Problem problem; /* the model's error, or ours; then everything else is absent */
    bool final; /* no other follows */
    bool empty; /* it only marks the end; or all outputs are missing as well */
    const char *model, *id;
    int64_t version;
    const ResponseOutput *outputs;
    size_t output_count;
    const ResponseParameter *parameters;
    size_t parameter_count;
    Call *call;
};

/* Any thread. Frees what it points to. */
void call_response_release(CallResponse *response);

#endif
