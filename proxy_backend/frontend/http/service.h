/* HTTP on an endpoint: the interface for main. */
#ifndef PYTRITON_FRONTEND_HTTP_SERVICE_H
#define PYTRITON_FRONTEND_HTTP_SERVICE_H

#include "thread_pool/thread_pool.h"
#include "calls/call.h"
#include "tracing/tracing.h"
#include "net/connection.h"

/* The set of paths on an endpoint. */
typedef enum {
    HTTP_API,       /* KServe's, with Triton's extensions */
    HTTP_METRICS,   /* "/metrics" */
    HTTP_ADMIN,     /* both, without restrictions, and the dispatcher's private paths */
    HTTP_SAGEMAKER, /* Amazon SageMaker's */
    HTTP_VERTEX_AI, /* Google Vertex AI's */
} HttpPaths;

/* An API whose requests require this header and value. APIs are named as in --http-restricted-api. */
typedef struct {
    const char *api, *header, *value;
} HttpRestriction;

/* Actions that the dispatcher may request over an admin endpoint. Each is called in a job's thread, and may take a
 * while.
 */
typedef struct {
    /* End, as on SIGTERM. */
    void (*end)(void *user);
    /* Start or stop accepting client connections; open ones stay. Returns false with a problem. */
    bool (*accept)(void *user, bool accept, Problem *problem);
    /* Another process, which takes connections over at `successor` (NULL: nowhere), replaces this one: stop
     * accepting, and end when the last connection has been handed over or has ended. A problem, unless `force`:
     * sequences are in progress.
     */
    bool (*retire)(void *user, const char *successor, bool force, Problem *problem);
    /* Stop accepting, answer requests in flight, and return when no connection is left, or the exit timeout is over. */
    void (*leave)(void *user);
    void *user;
} ServerControl;

/* Settings common to all HTTP endpoints; the caller keeps what they point to, for as long as the service. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing; /* NULL: none */
    ThreadPool *jobs;
    ThreadPool *readers; /* for requests that take long to read */
    CallsSettings calls;
    const HttpRestriction *restrictions;
    size_t restriction_count;
    const char *header_forward_pattern; /* a regular expression; NULL or "": none */
    /* Append the frontend's own metrics to the core's; NULL: none. */
    void (*put_metrics)(void *user, Buffer *text);
    void *user;
    const ServerControl *control; /* of an admin endpoint; NULL: the process accepts no actions */
    /* Vertex AI's routes (AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE), and the default model for it and SageMaker; NULL:
     * none.
     */
    const char *sagemaker_folder; /* where SageMaker puts models that it has loaded; NULL: single-model mode */
    const char *sagemaker_inference; /* what /invocations is: "generate", "generate_stream", NULL or "infer" */
    const char *vertex_health, *vertex_predict, *default_model;
} HttpSettings;

typedef struct HttpService HttpService;

/* Returns an endpoint's service, to be freed after its last connection; NULL: a problem, such as an invalid pattern. */
HttpService *http_service_new(const HttpSettings *settings, HttpPaths paths, Problem *problem);
void http_service_free(HttpService *service);

/* The protocol of an Endpoint whose service is an HttpService. */
extern const Protocol http_protocol;

#endif
