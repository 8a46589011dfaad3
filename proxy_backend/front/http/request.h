/* One request, from the connection that read it to whoever answers it: what the files of this room share.
 *
 * Its memory is a Call's: the request's bytes in `body`, the answer in `reply`. The connection has a reference to the call until the answer has
 * been written, whoever does that: the loop, the model's thread, or a job's.
 */
#ifndef PYTRITON_FRONT_HTTP_REQUEST_H
#define PYTRITON_FRONT_HTTP_REQUEST_H

#include "base/compression.h"
#include "http/load_report.h"
#include "http/service.h"
#include "http1/head.h"
#include "http1/header_pattern.h"
#include "http1/target.h"
#include "relay/relay.h"

#include <stdatomic.h>

/* Of HttpRestriction and routes. */
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
    API_OTHER, /* which cannot be restricted */
} HttpApi;

typedef struct HostedModels HostedModels; /* hosted.c's */

struct HttpService {
    HttpSettings settings;
    HttpPaths paths;
    const HttpRestriction *restrictions[API_OTHER]; /* by API; NULL: none */
    HostedModels *hosted; /* NULL: there are none */
    HeaderPattern *forward; /* of headers that are handed on; NULL: none */
};

/* What takes long: it runs in a thread of the service's jobs, and writes to call->reply. */
typedef struct {
    Job job;
    Call *call;
    bool (*work)(Call *call, Problem *problem);
    const char *type; /* of the reply */
    Problem problem;
    bool done, answers_itself; /* `answers_itself`: where the work succeeds, it answers */
    Slice name, version, repository, body; /* which stay */
    bool flag;
} HttpJob;

/* A request that takes long to be read: a thread of the service's readers does that (start.c). */
typedef struct {
    Job job; /* first, so that it is found by its address */
    Call *call;
    size_t head_size;
} HttpLate;

/* What lies in each call of this room's pools: all zero when it is taken. */
typedef struct {
    Connection *connection; /* a reference, from call_begin to the end */
    HttpService *service;
    bool keep_alive, is_head, is_old; /* `is_head`: the method HEAD; `is_old`: HTTP/1.0 */
    Compression
        compression; /* that the client takes, of inferences only: Triton's asyncio client reads all else as it is */
    /* The answer, when all of it is there: what is left to be written. */
    struct iovec *parts;
    int part_count;
    uint64_t unsent; /* bytes of it that are counted (net/limits.h) */
    Text compressed;
    Answer *answer; /* in which parts lie */
    /* Of inferences. */
    LoadReport load_report;  /* that the client asked for */
    bool binary_output; /* where an output does not say otherwise */
    bool begun; /* the head has been written, of a stream */
    bool is_broken; /* nobody reads the stream any more */
    unsigned answers; /* of generate: how many have come */
    const char *allow; /* with 405: the methods that there are */
    bool later; /* with 503: the text says that the same may be asked again later */
    HttpLate late;
    HttpJob job;
    size_t head_size; /* of the request */
    bool is_expanded; /* its body is no longer compressed */
    AwaitedBy waiter; /* while its model comes */
    Relay *relay; /* of a stream that may go to another connection; NULL: it may not */
} HttpCall;

/* A whole request. It stays as long as the handler runs; what is needed later has to be copied. */
typedef struct {
    Call *call;
    HttpService *service;
    const HttpHead *head;
    const Target *target;
    Slice body; /* expanded; it lies in call->body, which is the call's */
    const Limits *limits;
    bool is_admin;
    /* From the route: */
    Slice name, version, repository;
} HttpRequest;

/* Answers a request, or will; false: the problem is to be answered. */
typedef bool HttpHandler(HttpRequest *request, Problem *problem);

static inline HttpCall *http_call(Call *call)
{
    return call->state;
}

/* ── answers (answer.c). Each is the last of its call that the handler does: call_unref follows from it. Any thread. ──────────── */

/* Have call->reply empty, but for the room for the head. False: there is no memory. */
bool answer_begin(Call *call, Problem *problem);
/* What has been written since. */
Slice answer_body(const Call *call);
/* Send what has been written, and then `count` parts, which lie in `answer` or in the call. `json_bytes`: of a body that begins with JSON; else 0. */
void answer_send(Call *call, int status, const char *type, const struct iovec *parts, int count, size_t json_bytes);
/* A body that lies somewhere else, or none. */
void answer_text(Call *call, int status, const char *type, Slice body);
/* {"error": ...}; the problem is cleared. */
void answer_problem(Call *call, Problem *problem);
/* The same without a call, and the end of the connection. Loop only. */
void answer_refusal(Connection *connection, Problem *problem);

/* A body of unknown size, in chunks, as it comes. False: nobody reads it any more. */
bool answer_open(Call *call, int status, const char *type);
bool answer_piece(Call *call, Slice piece);
void answer_close(Call *call);

/* A client's connection may be handed over for a stream: asked with what `pulse_ms` is (relay.h); said with "yes". */
#define RELAY_HEADER "Pytriton-Relay"

#define TYPE_JSON "application/json"
#define TYPE_BINARY "application/octet-stream"
#define TYPE_TEXT "text/plain"
#define TYPE_EVENTS "text/event-stream; charset=utf-8"

/* ── the connection (connection.c) ─────────────────────────────────────────────────────────────────────────────────── */

/* Whether the answer that is written from now on is the connection's last. Any thread. */
bool connection_is_last(Call *call);
/* The answer's head has been written and events follow; or `goes_on` false: the end of them does. Any thread. */
void connection_says_events(Call *call, bool goes_on);
/* All has been written, or cannot be: the connection goes on. Any thread. */
void connection_answered(Call *call);
/* Its stream may go to a client whose connection is handed over on this one. Before it is started; any thread. */
void connection_relays(Call *call, Relay *relay);
/* Part of the answer is left: the loop goes on with answer_continue when the socket takes bytes. Any thread. */
void connection_await(Call *call);
/* Go on writing. */
void answer_continue(Call *call);

/* What the content's type says of how much of a body is JSON, on the clouds' endpoints; `start` NULL: nothing. */
Slice cloud_json_size(const HttpService *service, const HttpHead *head);
/* The type of such an answer; NULL: it is another endpoint. */
const char *cloud_answer_type(Call *call, size_t json_bytes);
/* Decode base64 in place; false: it is none. */
bool base64_decode(char *text, size_t size, size_t *decoded);
/* Hand the headers on that the model, or a trace, is to have; those of the model are text. */
bool call_take_headers(HttpRequest *request, Problem *problem);

/* Have a request run anew when its model has come. False: it is to be answered with the problem. Any thread. (start.c) */
bool request_waits(Call *call, Problem *problem);

/* ── handlers ─────────────────────────────────────────────────────────────────────────────────────────── */

HttpHandler http_handle_infer, http_handle_generate, http_handle_generate_stream;
HttpHandler http_handle_live, http_handle_ready, http_handle_server, http_handle_model, http_handle_model_ready;
HttpHandler http_handle_config, http_handle_model_statistics, http_handle_statistics, http_handle_metrics;
HttpHandler http_handle_index, http_handle_load, http_handle_unload;
HttpHandler http_handle_log_read, http_handle_log_change, http_handle_trace_read, http_handle_trace_change;
HttpHandler http_handle_region_status, http_handle_region_register, http_handle_region_unregister;
HttpHandler http_handle_gpu_status, http_handle_gpu_register, http_handle_gpu_unregister;
HttpHandler http_handle_accept, http_handle_drain, http_handle_leave, http_handle_retire, http_handle_work;
HttpHandler http_handle_forget, http_handle_hold;

/* A copy of a text that stays as long as the call; false: there is no memory. */
bool http_keep(Call *call, Slice text, Slice *copy, Problem *problem);
/* Have `work` run as a job, whose reply is then sent; on failure its problem. The request's names and its body are in the job. */
bool http_job(HttpRequest *request, bool (*work)(Call *call, Problem *problem), const char *type, Problem *problem);

#endif
