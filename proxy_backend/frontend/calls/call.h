/* One inference, from a client's request to the core's answers, for both HTTP and gRPC.
 *
 *     calls_acquire ▶ call_model ▶ call_input ... call_output ... ▶ call_start ▶ `on_response`, at least once ▶ call_unref
 *
 * References. The owner, which has acquired the call, holds one for as long as it needs the call. The core holds one
 * until it has released the request and delivered its last response. Each answer holds one until
 * call_response_release. So a connection can continue with its next request, in another call, while the core still
 * reads the inputs of this one. When the last reference is dropped, the call and its memory are reused.
 *
 * Threads. Until call_start returns, only the owner uses a call; but `on_response` can be called before that, in any
 * thread. Functions that any thread may call say so.
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

/* Settings that all pools of calls share. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing; /* NULL without tracing */
    ResponseCache *cache; /* NULL without a response cache */
    const TraceSteps *steps; /* names of the protocol's steps in traces */
    uint64_t inputs;         /* maximum number of inputs, of requested outputs, and of parameters of a request */
    uint64_t output_bytes;   /* maximum size of a call's answers at any time */
    uint64_t kept_bytes;     /* bytes of memory that a call keeps for reuse */
    uint64_t kept_calls;     /* number of unused calls that a pool keeps */
} CallsSettings;

/* Returns settings in which the numbers have their defaults. */
CallsSettings calls_settings(Server *server, SharedMemory *shared_memory);

/* An input or output as named by a client. */
typedef struct {
    const char *name; /* NUL-terminated; valid UTF-8 */
    void *user;       /* for use by the protocol */
    unsigned flags;   /* for use by the protocol, for outputs; initially 0 */
    /* For inputs: */
    DataType datatype;
    const int64_t *shape;
    uint64_t dims, elements;
    uint64_t expected; /* size in bytes; UINT64_MAX for BYTES, whose size depends on the elements */
    uint64_t given;
    /* For outputs: */
    uint32_t classes; /* return the labels of this many largest values; 0 returns all values */
    SharedRegion *region; /* source of an input or destination of an output; NULL for the message */
    uint64_t offset, room;
} CallTensor;

typedef struct Call {
    Buffer body; /* for the protocol's request: inputs point into it, so it must not change after call_start */
    BodyCount counted; /* how much of `body` is counted (net/limits.h); released when the call is reused */
    Buffer reply; /* for the protocol's answer */
    void *state; /* `state_size` bytes for the protocol, all zeros when the call is acquired */
    bool decoupled; /* the model may answer any number of times; set by call_model */
    CallTensor *inputs, *outputs;
    size_t input_count, output_count;
} Call;

/* Called with each answer, one at a time and in order, in any thread: the core's, the model's, or the caller's of
 * call_start. `response->final` marks the last one. The callee owns the answer and has to call call_response_release.
 */
typedef void (*CallOnResponse)(Call *call, CallResponse *response);

/* ── pools ──────────────────────────────────────────────────────────────────────────────────────── */

/* Create a pool. `state_size` is the size of the protocol's state in each call. */
Calls *calls_new(const CallsSettings *settings, size_t state_size, Problem *problem);
/* Close the pool to new calls. It is freed with its last call. */
void calls_free(Calls *calls);
/* Take a call with one reference, which the caller owns. Returns NULL without memory. Any thread. */
Call *calls_acquire(Calls *calls);
/* Returns the number of unused calls in the pool. Any thread. */
uint64_t calls_idle(Calls *calls);
/* Returns the number of calls in this process that the core has not completely answered and released. Any thread. */
uint64_t calls_running(void);

Call *call_ref(Call *call);
void call_unref(Call *call);
/* Allocate memory that is valid until the call is reused. It is aligned for any type, and not cleared. NULL without
 * memory.
 */
void *call_memory(Call *call, size_t size);

/* ── the request ────────────────────────────────────────────────────────────────────────────────── */

/* Returns the server that runs the call. */
Server *call_server(Call *call);
/* Set the model. Must come first. With an empty `version`, the model's policy selects one. Returns false with a
 * problem if there is no such model or it is not ready. After PROBLEM_MODEL_PENDING, the call is unchanged, and may be
 * retried from here.
 */
bool call_model(Call *call, Slice model, Slice version, Problem *problem);
/* If the problem is PROBLEM_MODEL_PENDING, let the call wait for the model (pending_models_wait). Returns whether it
 * waits. The waiter holds a reference to the call, which `then` has to drop.
 */
bool call_wait_for_model(Call *call, Problem *problem, ModelWaiter *waiter, ModelWaiterResume *then);
bool call_id(Call *call, Slice id, Problem *problem);

/* Add a parameter of the request. "sequence_id", "sequence_start", "sequence_end", "priority" and "timeout" have the
 * meaning of Triton's protocols. Names that begin with "triton_" are refused. All others are passed to the model.
 */
enum { PARAMETER_UNSIGNED = 100 }; /* an additional type: an integer too large for PARAMETER_INT */
typedef struct {
    int type; /* PARAMETER_STRING to PARAMETER_DOUBLE, or PARAMETER_UNSIGNED */
    union {
        Slice string;
        int64_t integer;
        uint64_t natural;
        bool boolean;
        double number;
    };
} CallParameter;
bool call_parameter(Call *call, Slice name, const CallParameter *value, Problem *problem);
/* Pass a header to the model as a parameter. Names that Triton itself uses, and those that begin with "sequence_" or
 * "triton_", are refused, because the model would mistake the header for a parameter of the request.
 */
bool call_header(Call *call, Slice name, Slice value, Problem *problem);
/* Add a tracing header: "x-request-id", "traceparent" or "tracestate". Others are ignored. If the request has no id,
 * the first of these identifies it in logs, traces and errors, but not in the answer.
 */
void call_origin_header(Call *call, Slice name, Slice value);

/* Begin an input. Add its data in pieces, or a region of shared memory, or nothing if it is empty. The next call_input
 * or call_start completes the input, and refuses it if its size does not match its shape and type exactly. The shape
 * is copied.
 */
CallTensor *call_input(Call *call, Slice name, Slice datatype, const int64_t *shape, size_t dims, Problem *problem);
/* Add bytes to the current input. They must not change until the call is reused, so put them into call->body or
 * call_memory. For BYTES, they are elements, each after its size in 4 bytes; no element may be split between pieces.
 */
bool call_input_data(Call *call, const void *bytes, size_t size, Problem *problem);
bool call_input_region(Call *call, Slice region, uint64_t offset, uint64_t size, Problem *problem);
/* Add the only input, from raw bytes. It gets the name, type and shape of the model's only input. */
bool call_input_raw(Call *call, const void *bytes, size_t size, Problem *problem);

/* Add an output to return. If none is added, all outputs are returned. */
CallTensor *call_output(Call *call, Slice name, Problem *problem);
bool call_output_classes(Call *call, CallTensor *output, int64_t classes, Problem *problem);
bool call_output_region(Call *call, CallTensor *output, Slice region, uint64_t offset, uint64_t size, Problem *problem);

/* Pass the call to the core. Returns false if it was refused; `on_response` is not called then. */
bool call_start(Call *call, CallOnResponse on_response, Problem *problem);
/* Cancel the request in the core, because its client no longer waits. The call is still answered, possibly with an
 * error. Any thread, at any time; only the first time has an effect.
 */
void call_cancel(Call *call);
/* Record in the trace that the first bytes of an answer are about to be sent. */
void call_trace_send_start(Call *call);

/* ── the answers ────────────────────────────────────────────────────────────────────────────────── */

typedef struct {
    const char *name;
    DataType datatype;
    const int64_t *shape;
    uint64_t dims, elements;
    const void *bytes; /* for BYTES: elements, each after its size in 4 bytes */
    size_t size;
    const CallTensor *requested; /* the client's description of the output, or NULL */
    bool in_region; /* it is in the client's region instead of the message, and has `size` bytes */
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
    Problem problem; /* an error of the model or of the frontend; all other fields are empty then */
    bool final; /* no further answer follows */
    bool empty; /* it has no outputs; a final one may only mark the end */
    const char *model, *id;
    int64_t version;
    const ResponseOutput *outputs;
    size_t output_count;
    const ResponseParameter *parameters;
    size_t parameter_count;
    Call *call;
};

/* Free the answer and what it refers to. Any thread. */
void call_response_release(CallResponse *response);

#endif
