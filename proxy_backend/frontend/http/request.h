/* One request, from the connection that reads it to the handler that answers it. For the files of this directory.
 *
 * Its memory belongs to a Call: the request's bytes are in `body`, the answer is in `reply`. The connection holds a
 * reference to the call until the loop, a thread of the model, or a job has written the answer.
 */
#ifndef PYTRITON_FRONTEND_HTTP_REQUEST_H
#define PYTRITON_FRONTEND_HTTP_REQUEST_H

#include "base/compression.h"
#include "http/load_report.h"
#include "http/route_table.h"
#include "http/service.h"
#include "http1/head.h"
#include "http1/header_pattern.h"
#include "http1/target.h"
#include "relay/relay.h"

#include <stdatomic.h>

/* The APIs that requests belong to, for restrictions. */
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
    API_OTHER, /* cannot be restricted */
} HttpApi;

typedef struct SagemakerModels SagemakerModels; /* see sagemaker_mme.c */

struct HttpService {
    HttpSettings settings;
    HttpPaths paths;
    const HttpRestriction *restrictions[API_OTHER]; /* by API; NULL if it is not restricted */
    SagemakerModels *sagemaker_models; /* NULL except in SageMaker's multi-model mode */
    HeaderPattern *forward; /* names of headers to forward, or NULL */
};

/* A slow operation. It runs in a thread of the service's jobs, and writes to call->reply. */
typedef struct {
    Job job;
    Call *call;
    bool (*work)(Call *call, Problem *problem);
    const char *type; /* content type of the reply */
    Problem problem;
    bool done, responds_itself; /* `responds_itself` means that the work answers the request itself if it succeeds */
    Slice name, version, repository, body; /* copies of the request's */
    bool flag;
} HttpJob;

/* A request that takes long to read. It is handled in a thread of the service's readers (request_reader.c). */
typedef struct {
    Job job; /* first, so that both have the same address */
    Call *call;
    size_t head_size;
} HttpDeferred;

/* The state that this module has in each call. All zeros at first. */
typedef struct {
    Connection *connection; /* a reference, held from call_begin to the end of the answer */
    HttpService *service;
    bool keep_alive, is_head, is_old; /* `is_head`: the method is HEAD; `is_old`: HTTP/1.0 */
    /* accepted by the client; only used for inferences, since Triton's asyncio client does not decode others */
    Compression compression;
    /* What remains to be written of a complete answer. */
    struct iovec *parts;
    int part_count;
    uint64_t unsent; /* the part of it that is counted (net/limits.h) */
    Buffer compressed;
    CallResponse *response; /* the owner of the memory of the parts */
    /* For inferences. */
    LoadReport load_report; /* requested by the client */
    bool binary_output; /* the client's default for outputs */
    bool begun; /* the head of a stream has been written */
    int status; /* of a stream that is about to begin */
    bool is_broken; /* the client of a stream is gone */
    unsigned responses; /* number of answers with outputs or an error */
    bool is_typed; /* the request is for a typed function or a page, so errors are sent as problem details */
    const char *typed_type; /* Content-Type of a typed function's response */
    bool is_refused; /* the stream failed before its first event; `refusal` is the error */
    Problem refusal;
    char *headers; /* additional lines of the response's head, in the call's memory, or NULL */
    char *subject; /* method and path of a request whose error is logged, in the call's memory, or NULL (error_log.h) */
    uint64_t began_ns;
    const char *allow; /* with status 405: the allowed methods */
    bool retry_later; /* with status 503: the error says that the request can be retried later */
    HttpDeferred deferred;
    HttpJob job;
    size_t head_size; /* size of the request's head */
    bool is_expanded; /* its body has been decompressed */
    ModelWaiter waiter; /* used while it waits for its model */
    Relay *relay; /* of a stream that another connection may continue, otherwise NULL */
} HttpCall;

/* A complete request. Valid only while the handler runs, so copy what is needed later. */
typedef struct {
    Call *call;
    HttpService *service;
    const HttpHead *head;
    const Target *target;
    Slice body; /* decompressed, in call->body */
    const Limits *limits;
    bool is_admin;
    /* From the path: */
    Slice name, version, repository;
} HttpRequest;

/* Answers a request, now or later. Returns false with a problem, which the caller sends as the answer. */
typedef bool HttpHandler(HttpRequest *request, Problem *problem);

static inline HttpCall *http_call(Call *call)
{
    return call->state;
}

/* ── answers (response.c). Each is a handler's last operation on its call, and includes call_unref. Any thread. ─────────────────── */

/* Keep the first answer to a request that gets one, in state->response, and release the others. Returns the kept one with the
 * final answer, and NULL before. Unlike the functions below, it does not write anything. */
CallResponse *response_keep_first(HttpCall *state, CallResponse *response);
/* Empty call->reply, and reserve room for the head in it. Returns false without memory. */
bool response_begin(Call *call, Problem *problem);
/* Returns what has been written to call->reply since response_begin. */
Slice response_body(const Call *call);
/* Send the contents of call->reply, then `count` parts, whose memory belongs to `response` or to the call.
 * `json_bytes` is the size of the JSON that the body begins with, or 0.
 */
void response_send(Call *call, int status, const char *type, const struct iovec *parts, int count, size_t json_bytes);
/* Send a body that is not in call->reply, or none. */
void response_send_text(Call *call, int status, const char *type, Slice body);
/* Send {"error": ...}, and clear the problem. */
void response_send_problem(Call *call, Problem *problem);
/* Send an error without a call, as {"error": ...} or problem details, and end the connection. Only in the loop's thread. */
void response_refuse(Connection *connection, bool is_typed, Problem *problem);

/* Begin a stream of events, which is sent in chunks, with its first piece if that is not empty. Returns false if
 * the client is gone.
 */
bool response_open(Call *call, int status, Slice piece);
bool response_send_chunk(Call *call, Slice piece);
void response_close(Call *call);

/* The header with which the OpenAI frontend offers to hand over its client's connection for a stream. In a request it
 * has the value of `pulse_ms` (relay.h), in the answer "yes".
 */
#define RELAY_HEADER "Pytriton-Relay"

#define TYPE_JSON "application/json"
#define TYPE_BINARY "application/octet-stream"
#define TYPE_PROBLEM "application/problem+json"
#define TYPE_TEXT "text/plain"

/* ── the connection (connection.c) ─────────────────────────────────────────────────────────────────────────────────── */

/* Returns whether an answer that is written from now on is the connection's last. Any thread. */
bool http_connection_is_last(Call *call);
/* Write the head of an answer, and perhaps its first event; others follow. Returns false if the client is gone. Any
 * thread.
 */
bool http_connection_begin_events(Call *call, const struct iovec *parts, int count);
/* Record that the events have ended. Any thread. */
void http_connection_end_events(Call *call);
/* The answer has been written completely, or cannot be. The connection continues. Any thread. */
void http_connection_responded(Call *call);
/* Record that another client's connection, handed over on this one, may continue the call's stream. Called before the
 * stream begins. Any thread.
 */
void http_connection_set_relay(Call *call, Relay *relay);
/* A part of the answer remains: the loop calls response_continue when the socket is writable. Any thread. */
void http_connection_await_writable(Call *call);
/* Continue writing the answer. */
void response_continue(Call *call);

/* Returns the size of the JSON in a body, as given in the content type at SageMaker's and Vertex AI's endpoints, or an
 * absent slice.
 */
Slice sagemaker_vertex_json_size(const HttpService *service, const HttpHead *head);
/* Returns the content type for such an answer, or NULL at other endpoints. */
const char *sagemaker_vertex_response_type(Call *call, size_t json_bytes);
/* Decode base64 in place. Returns false if it is invalid. */
bool base64_decode(char *text, size_t size, size_t *decoded);
/* Forward headers to the model and the trace. Returns false with a problem if a header for the model is not text. */
bool http_forward_headers(HttpRequest *request, Problem *problem);

/* If the problem is that the model is pending, run the request again when the model has been loaded. Returns false if
 * the problem must be answered instead. Any thread. (request_reader.c)
 */
bool request_wait_for_model(Call *call, Problem *problem);

/* Returns whether a path is one of the dispatcher's table, whose errors are problem details. (routes.c) */
bool request_is_typed(const HttpService *service, Slice path);

/* ── handlers ─────────────────────────────────────────────────────────────────────────────────────────── */

HttpHandler http_handle_infer, http_handle_generate, http_handle_generate_stream;
HttpHandler http_handle_live, http_handle_ready, http_handle_server, http_handle_model, http_handle_model_ready;
HttpHandler http_handle_config, http_handle_model_statistics, http_handle_statistics, http_handle_metrics;
HttpHandler http_handle_index, http_handle_load, http_handle_unload;
HttpHandler http_handle_log_read, http_handle_log_change, http_handle_trace_read, http_handle_trace_change;
HttpHandler http_handle_region_status, http_handle_region_register, http_handle_region_unregister;
HttpHandler http_handle_gpu_status, http_handle_gpu_register, http_handle_gpu_unregister;
HttpHandler http_handle_accept, http_handle_drain, http_handle_leave, http_handle_retire, http_handle_work,
    http_handle_replace_routes;
HttpHandler http_handle_settle, http_handle_set_ready;

/* Copy a text for the lifetime of the call. Returns false without memory. */
bool http_copy(Call *call, Slice text, Slice *copy, Problem *problem);
/* Run `work` as a job. Then send its reply, or its problem. The job gets copies of the names and the body in the
 * request.
 */
bool http_job(HttpRequest *request, bool (*work)(Call *call, Problem *problem), const char *type, Problem *problem);

#endif
