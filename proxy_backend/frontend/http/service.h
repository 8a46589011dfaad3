/* HTTP on an endpoint: the interface for startup/. */
#ifndef PYTRITON_FRONTEND_HTTP_SERVICE_H
#define PYTRITON_FRONTEND_HTTP_SERVICE_H

#include "thread_pool/thread_pool.h"
#include "calls/call.h"
#include "http/route_table.h"
#include "tracing/tracing.h"
#include "net/connection.h"

/* The paths that an endpoint has. */
typedef enum {
    HTTP_API,       /* KServe's paths with Triton's extensions */
    HTTP_METRICS,   /* "/metrics" */
    HTTP_ADMIN,     /* both without restrictions, and the dispatcher's private paths */
    HTTP_SAGEMAKER, /* Amazon SageMaker's paths */
    HTTP_VERTEX_AI, /* Google Vertex AI's paths */
} HttpPaths;

/* A header and its value that requests to an API must have. APIs are named as in --http-restricted-api. */
typedef struct {
    const char *api, *header, *value;
} HttpRestriction;

/* Actions that the dispatcher can request through an admin endpoint. They run in jobs' threads, and may block. */
typedef struct {
    /* End the process as on SIGTERM. */
    void (*end)(void *user);
    /* Start or stop accepting clients' connections. Open ones stay. Returns false with a problem. */
    bool (*accept)(void *user, bool accept, Problem *problem);
    /* Another process replaces this one. Stop accepting, and end when the last connection has ended or has been handed
     * over to the process that listens at `successor` (NULL if there is none). Unless `force`, returns false with a
     * problem while sequences are in progress.
     */
    bool (*retire)(void *user, const char *successor, bool force, Problem *problem);
    /* Stop accepting and answer requests in flight. Return when no connection is left, or after the exit timeout. */
    void (*leave)(void *user);
    void *user;
} ServerControl;

/* Settings that all HTTP endpoints share. What they point to must outlive the service. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing; /* NULL without tracing */
    ThreadPool *jobs;
    ThreadPool *readers; /* reads requests that take long to read */
    CallsSettings calls;
    RouteTable *route_table; /* NULL: none */
    const HttpRestriction *restrictions;
    size_t restriction_count;
    const char *header_forward_pattern; /* a regular expression; NULL or "" for none */
    /* Appends the frontend's own metrics to the core's; may be NULL. */
    void (*put_metrics)(void *user, Buffer *text);
    void *user;
    const ServerControl *control; /* for an admin endpoint; NULL if the process accepts no actions */
    /* Vertex AI's paths (AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE), and the default model for Vertex AI and SageMaker. NULL
     * if not set.
     */
    const char *sagemaker_folder; /* directory to which SageMaker copies models; NULL in single-model mode */
    /* operation of /invocations: "generate", "generate_stream", or "infer" (also NULL) */
    const char *sagemaker_inference;
    const char *vertex_health, *vertex_predict, *default_model;
} HttpSettings;

typedef struct HttpService HttpService;

/* Create the service of an endpoint. It must be freed after the endpoint's last connection. Returns NULL with a
 * problem, such as an invalid pattern.
 */
HttpService *http_service_new(const HttpSettings *settings, HttpPaths paths, Problem *problem);
void http_service_free(HttpService *service);

/* The protocol of an Endpoint whose `service` is an HttpService. */
extern const Protocol http_protocol;

#endif
