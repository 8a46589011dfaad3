/* What runs inside of tritonserver: a proxy for each instance of a model, and what its instances have in common.
 *
 *     model.c       tritonserver calls it: a model is loaded, a batch is to be executed
 *     batch.c       a batch of a model that answers each request once
 *     streams.c     batches that may be answered many times, or at any time; metrics.c: what such a model counts
 *     refusals.c    requests that nobody can serve: they are answered by themselves
 *     requests.c    what tritonserver asks, in the lane's form; responses.c: what the worker answers, in Triton's
 *     endings.c, watch.c  what keeps tritonserver going when clients give up streams
 *     attachment.c  which worker serves this proxy: the dispatcher is asked
 *     lane.c        the connection with the worker; packet.c, memory.c, idle.c, peer.c, wire.c: what lies behind it
 *     control.c     the connection with the dispatcher
 *     chain.c       requests that another model has made; json.c: what Triton gives as JSON
 *     calls.c       calls that the worker makes to other models; with call_request.c, call_chain.c, connection.c
 *
 * It is the compiled twin of the Python modules of proxy_backend, for which Triton's python backend starts a process for each
 * instance, and speaks the same protocols: a worker or the dispatcher cannot tell which one it talks with.
 */
#ifndef PYTRITON_PROXY_H
#define PYTRITON_PROXY_H

#include "control.h"
#include "lane.h"
#include "triton.h"

#include <pthread.h>

/* A model as it was loaded: one of its versions. */
typedef struct {
    TRITONBACKEND_Model *model;
    int holders; /* tritonserver, and the proxies */
    char *name;
    char *endpoint;     /* of the dispatcher's control socket */
    char *registration; /* which registration this is */
    uint64_t number;    /* of this version */
    char *version;      /* what requests tell the worker, of a model with several; else NULL */
    char *stand_in;     /* what each request is told, where nobody is to be asked; else NULL */
    bool batching;      /* requests have a batch axis */
    bool streams;       /* it may answer many times, or at any time */
    bool details;       /* a Triton Python model: requests carry what only such a one asks for */
    unsigned waiting;   /* batches of streams.c that a worker is to begin; atomic */
} Model;

typedef struct Streams Streams;

/* An instance of a model. One thread of tritonserver uses it at a time. */
typedef struct {
    TRITONBACKEND_ModelInstance *instance;
    Model *model;
    Streams *streams; /* NULL: batches are answered once, while tritonserver waits */
    char *name; /* what the dispatcher knows it by */
    Control *control;
    Lane *lane; /* NULL: it has none at the moment */
    struct Calls *calls; /* that the lane's worker makes, and before it those of earlier ones that still wait */
    char *worker;
    double execution_timeout_s; /* 0: none */
    bool tracing;
    bool waited_on; /* the lane's patience is what the dispatcher said, not the model's */
    uint64_t batch;
    Buffer message;   /* kept for the next batch */
    Buffer avoid;     /* workers that wait for the batch at hand: strings of MessagePack */
    uint32_t avoided; /* how many they are */
} Proxy;

/* ── attachment.c ─────────────────────────────────────────────────────────────────────────────────
 * Texts are for the client, and for free().
 */

/* Get a lane, unless there is one. Returns NULL, or why no worker will come any more. */
char *attach(Proxy *proxy);
/* Let the lane go. */
void drop_lane(Proxy *proxy);
/* Say that this proxy ends. */
void detach(Proxy *proxy);
/* What the dispatcher is told of requests whose worker was lost, or is overdue (LaneLost in ipc/messages/proxy.py). */
typedef struct {
    int losses;        /* workers that were lost with them */
    uint32_t requests; /* how many they are */
    int in_row;        /* of their batch, how many lost a worker each by itself, one after the other */
    bool final;        /* they cannot be tried again */
    bool whole;        /* what it says: the rest of their batch fails with them */
    uint64_t taken_ns; /* of judge_overdue: when they were first seen to have been taken; 0: they were not */
} Loss;
/* What to answer to requests whose worker was lost; NULL: try another one. */
char *judge_loss(Proxy *proxy, Loss *loss);
/* The batch has taken too long; `taken`: the worker has read it. NULL: wait on for so long, or if `retry`, try another
 * worker. */
char *judge_overdue(Proxy *proxy, Loss *loss, bool taken, double *wait_s, bool *retry);

/* ── refusals.c ───────────────────────────────────────────────────────────────────────────────────── */

/* Answer and release the requests that nobody can serve. Returns how many are left; these come first then. */
uint32_t refuse_wrong(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

/* ── requests.c, responses.c ────────────────────────────────────────────────────────────────────────────────── */

/* Put a batch into `proxy->message`, its inputs into the lane's arena. Returns NULL, or what went wrong.
 * `alone`: the worker shall not merge it with others. `circular`: the worker waits for this very batch; `proxy->avoid` has who
 * does. */
char *put_batch(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, bool alone, bool *circular);
/* The context in which a request is traced, "" where it is not. */
const char *trace_of(TRITONBACKEND_Request *request);

/* Add one parameter, as Triton gives it, to an object of JSON that is being written: begin with "{", end with "}". */
void put_parameter(Buffer *json, const char *key, int type, const void *value);

/* A response that is filled from the worker's own memory: if that ends meanwhile, the next worker's answer goes to the same
 * response. NULL: no memory. */
typedef struct Unfinished Unfinished;
Unfinished *unfinished_new(void);
void unfinished_free(Unfinished *unfinished);

/* To whom responses go: a request, or what is left of it when it has been released. */
typedef struct {
    TRITONBACKEND_Request *request; /* NULL: the others say it */
    TRITONBACKEND_ResponseFactory *factory;
    char **requested; /* the outputs that the client wants; none: all */
    uint32_t requested_count;
    bool last; /* of its batch */
    Unfinished *unfinished; /* where outputs are read from the worker's own memory; else NULL */
} Receiver;

/* What became of a response. */
typedef struct {
    bool failed;     /* it was an error */
    bool final;      /* no more may be sent */
    bool silent;     /* nothing was sent: if it is the last one, that is still to be said */
    bool reschedule; /* there is none, tritonserver shall queue the request again */
} Outcome;

/* Read one response and send it; one to a request is its last. False: the worker broke the protocol, `lane->fault` says
 * how; that has been sent as the last response if `outcome->final` says so, else nothing was. Or it was lost (`lane->lost`),
 * and nothing was sent. */
bool pass_response(Proxy *proxy, const Receiver *to, Reader *answer, Outcome *outcome);
/* Whether a client waits no more for what its request is answered. */
bool is_gone(TRITONBACKEND_ResponseFactory *factory);
/* Answer with an error, which is the last response. */
void send_error(const Receiver *to, TRITONSERVER_Error_Code code, const char *text);
/* How many rows a request has: 1 without a batch axis. */
uint64_t rows_of(const Model *model, TRITONBACKEND_Request *request);

/* ── batch.c ──────────────────────────────────────────────────────────────────────────────────────── */

/* Have requests answered, and give them back to tritonserver. */
void batch_execute(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

/* Answer requests with an error: nobody serves the model at the moment. */
void batch_refuse(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, const char *text);

/* ── calls.c ──────────────────────────────────────────────────────────────────────────────────────── */

/* Make the calls of the worker that listens for lanes at `lane_path`, until calls_retire. */
void calls_serve(Proxy *proxy, const char *lane_path);
/* Make no new calls for the present worker. */
void calls_retire(Proxy *proxy);
/* Wait for the calls under way, but not for ever. */
void calls_end(Proxy *proxy);

/* ── model.c ────────────────────────────────────────────────────────────────────────────────────── */

/* Say that a proxy ends, and free it. */
void end_proxy(Proxy *proxy);

/* ── small things ───────────────────────────────────────────────────────────────────────────────── */

/* The names of error codes, by TRITONSERVER_Error_Code. */
enum { CODE_COUNT = 8 };
extern const char *const codes[CODE_COUNT];
/* An error's text for free(), NULL without one; the error is freed. */
char *text_of(TRITONSERVER_Error *error);
/* Whether so many strings fill so many bytes exactly. */
bool are_strings(const uint8_t *bytes, uint64_t size, uint64_t count);
/* Forget an error of tritonserver's; true: there was one. */
bool failed(TRITONSERVER_Error *error);
/* By the clock that tritonserver keeps its statistics by, and since 1970. */
uint64_t steady_ns(void);
uint64_t epoch_ns(void);
/* Start a thread that leaves signals to tritonserver, with so many bytes of stack; 0: as many as is usual. False: it
 * cannot be started. */
enum { SMALL_STACK = 1 << 20 };
bool start_thread(pthread_t *thread, size_t stack, void *(*run)(void *), void *argument);
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* printf into a text for free(); never NULL but without memory. */
char *texted(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
