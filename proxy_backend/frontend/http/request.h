/* One request, from the connection that read it to the handler: shared by the files of this directory.
 *
 * Its memory is a Call's: the request's bytes in `body`, the answer in `reply`. The connection holds a reference to
 * the call until the answer has been written by the loop, the model's thread, or a job's.
 */
#ifndef PYTRITON_FRONTEND_HTTP_REQUEST_H
#define PYTRITON_FRONTEND_HTTP_REQUEST_H

#include "base/compression.h"
#include "http/load_report.h"
#include "http/service.h"
#include "http1/head.h"
#include "http1/header_pattern.h"
#include "http1/target.h"
#include "relay/relay.h"

#include <stdatomic.h>

/* The APIs of HttpRestriction and routes. */
typedef enum {
    API_HEALTH,
    API_METADATA,
    API_INFERENCE,
    API_SHARED_MEMORY,
    API_MODEL_CONFIG,
    API_MODEL_REPOSITORY,
    API_STATISTICS,
    API_TRACE,
    API_LOGGING,
    API_OTHER, /* not restrictable */
} HttpApi;

typedef struct SagemakerModels SagemakerModels; /* sagemaker_mme.c's */

struct HttpService {
    HttpSettings settings;
    HttpPaths paths;
    const HttpRestriction *restrictions[API_OTHER]; /* by API; NULL: none */
    SagemakerModels *sagemaker_models; /* NULL: none */
    HeaderPattern *forward; /* of headers to forward; NULL: none */
};

/* A long operation: it runs in a thread of the service's jobs, and writes to call->reply. */
typedef struct {
    Job job;
    Call *call;
    bool (*work)(Call *call, Problem *problem);
    const char *type; /* of the reply */
    Problem problem;
    bool done, responds_itself; /* `responds_itself`: if the work succeeds, it has answered */
    Slice name, version, repository, body; /* copies */
    bool flag;
} HttpJob;

/* A request that takes long to read, handled in a thread of the service's readers (request_reader.c). */
typedef struct {
    Job job; /* first, so that its address is the object's */
    Call *call;
    size_t head_size;
} HttpDeferred;

/* The state in each call of this module's pools: all zero initially. */
typedef struct {
    Connection *connection; /* a reference, from call_begin to the end */
    HttpService *service;
    bool keep_alive, is_head, is_old; /* `is_head`: the method HEAD; `is_old`: HTTP/1.0 */
    Compression
        compression; /* that the client accepts, for inferences only: Triton's asyncio client does not decode others */
    /* The remaining part of a complete answer. */
    struct iovec *parts;
    int part_count;
    uint64_t unsent; /* bytes of it that are counted (net/limits.h) */
    Buffer compressed;
    CallResponse *response; /* the owner of the parts' memory */
    /* Of inferences. */
    LoadReport load_report; /* requested by the client */
    bool binary_output; /* the default for outputs */
    bool begun; /* a stream's head has been written */
    bool is_broken; /* the stream's client is gone */
    unsigned responses; /* generate: the number of answers */
    const char *allow; /* with 405: the allowed methods */
    bool retry_later; /* with 503: the error says that the request may be retried later */
    HttpDeferred deferred;
    HttpJob job;
    size_t head_size; /* of the request */
    bool is_expanded; /* its body is no longer compressed */
    ModelWaiter waiter; /* while it waits for its model */
    Relay *relay; /* of a stream that may go to another connection; NULL: it may not */
} HttpCall;

/* A complete request. It is valid while the handler runs; copy what is needed later. */
typedef struct {
    Call *call;
    HttpService *service;
    const HttpHead *head;
    const Target *target;
    Slice body; /* decompressed; it is in call->body, which is the call's */
    const Limits *limits;
    bool is_admin;
    /* From the route: */
    Slice name, version, repository;
} HttpRequest;

/* Answer a request, now or later. Returns false with a problem, which the caller answers. */
typedef bool HttpHandler(HttpRequest *request, Problem *problem);

static inline HttpCall *http_call(Call *call)
{
    return call->state;
}

/* ── answers (response.c). Each is a handler's last operation on its call, and includes call_unref. Any thread. ─────────────────── */

/* Empty call->reply, except for the room for the head. Returns false without memory. */
bool response_begin(Call *call, Problem *problem);
/* Returns what has been written since. */
Slice response_body(const Call *call);
/* Send what has been written, then `count` parts, which are in `response` or in the call. `json_bytes`: of a body that
 * begins with JSON; else 0.
 */
void response_send(Call *call, int status, const char *type, const struct iovec *parts, int count, size_t json_bytes);
/* Send a body from elsewhere, or none. */
void response_send_text(Call *call, int status, const char *type, Slice body);
/* Send {"error": ...}; the problem is cleared. */
void response_send_problem(Call *call, Problem *problem);
/* Send {"error": ...} without a call, and end the connection. Loop only. */
void response_refuse(Connection *connection, Problem *problem);

/* Send a body of unknown size, in chunks, as it arrives. Returns false if the client is gone. */
bool response_open(Call *call, int status, const char *type);
bool response_send_chunk(Call *call, Slice piece);
void response_close(Call *call);

/* A client's connection may be handed over for a stream: the request has the value of `pulse_ms` (relay.h); the
 * answer has "yes".
 */
#define RELAY_HEADER "Pytriton-Relay"

#define TYPE_JSON "application/json"
#define TYPE_BINARY "application/octet-stream"
#define TYPE_TEXT "text/plain"
#define TYPE_EVENTS "text/event-stream; charset=utf-8"

/* ── the connection (connection.c) ─────────────────────────────────────────────────────────────────────────────────── */

/* Returns whether the answer that is written from now on is the connection's last. Any thread. */
bool http_connection_is_last(Call *call);
/* The answer's head has been written and events follow; or, with `goes_on` false, they have ended. Any thread. */
void http_connection_set_events(Call *call, bool goes_on);
/* Everything has been written, or cannot be: the connection continues. Any thread. */
void http_connection_responded(Call *call);
/* The call's stream may go to a client whose connection is handed over on this one. Before it is started; any thread.
 */
void http_connection_set_relay(Call *call, Relay *relay);
/* Part of the answer is left: the loop continues with response_continue when the socket takes bytes. Any thread. */
void http_connection_await_writable(Call *call);
/* Continue writing. */
void response_continue(Call *call);

/* Returns the size of a body's JSON from the content type, on the clouds' endpoints; `start` NULL: not given. */
Slice sagemaker_vertex_json_size(const HttpService *service, const HttpHead *head);
/* Returns the content type of such an answer; NULL: another endpoint. */
const char *sagemaker_vertex_response_type(Call *call, size_t json_bytes);
/* Decode base64 in place. Returns false if it is invalid. */
bool base64_decode(char *text, size_t size, size_t *decoded);
/* Forward the headers for the model and the trace; those for the model must be text. */
bool http_forward_headers(HttpRequest *request, Problem *problem);

/* Run a request again when its model has been loaded. Returns false if the problem must be answered. Any thread.
 * (request_reader.c)
 */
bool request_wait_for_model(Call *call, Problem *problem);

/* ── handlers ─────────────────────────────────────────────────────────────────────────────────────────── */

HttpHandler http_handle_infer, http_handle_generate, http_handle_generate_stream;
HttpHandler http_handle_live, http_handle_ready, http_handle_server, http_handle_model, http_handle_model_ready;
HttpHandler http_handle_config, http_handle_model_statistics, http_handle_statistics, http_handle_metrics;
HttpHandler http_handle_index, http_handle_load, http_handle_unload;
HttpHandler http_handle_log_read, http_handle_log_change, http_handle_trace_read, http_handle_trace_change;
HttpHandler http_handle_region_status, http_handle_region_register, http_handle_region_unregister;
HttpHandler http_handle_gpu_status, http_handle_gpu_register, http_handle_gpu_unregister;
HttpHandler http_handle_accept, http_handle_drain, http_handle_leave, http_handle_retire, http_handle_work;
HttpHandler http_handle_settle, http_handle_set_ready;

/* Copy a text for as long as the call lives. Returns false without memory. */
bool http_copy(Call *call, Slice text, Slice *copy, Problem *problem);
/* Run `work` as a job, then send its reply, or on failure its problem. The job has copies of the request's names and
 * body.
 */
bool http_job(HttpRequest *request, bool (*work)(Call *call, Problem *problem), const char *type, Problem *problem);

#endif
