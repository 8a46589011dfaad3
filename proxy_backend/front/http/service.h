/* HTTP on an endpoint: what main needs to know of it. */
#ifndef PYTRITON_FRONT_HTTP_SERVICE_H
#define PYTRITON_FRONT_HTTP_SERVICE_H

#include "background/jobs.h"
#include "calls/call.h"
#include "tracing/tracing.h"
#include "net/connection.h"

/* Which paths there are on an endpoint. */
typedef enum {
    HTTP_API,       /* KServe's, with Triton's extensions */
    HTTP_METRICS,   /* "/metrics" */
    HTTP_ADMIN,     /* both, without restrictions, and what only the dispatcher may ask */
    HTTP_SAGEMAKER, /* Amazon SageMaker's */
    HTTP_VERTEX_AI, /* Google Vertex AI's */
} HttpPaths;

/* An API whose requests must have that header with that value. APIs are named as in --http-restricted-api. */
typedef struct {
    const char *api, *header, *value;
} HttpRestriction;

/* What the dispatcher may have the process do, over an admin endpoint. Each is called in a job's thread, and may take a while. */
typedef struct {
    /* End, as SIGTERM does. */
    void (*end)(void *user);
    /* Accept connections of clients from now on, or no more; the ones that are open stay. False: a problem. */
    bool (*accept)(void *user, bool accept, Problem *problem);
    /* Another process, which takes connections over at `successor` (NULL: nowhere), is in this one's place: accept no more, and end when the last
     * connection has been handed over or has ended. A problem: sequences are in progress, and it is not to be by `force`. */
    bool (*retire)(void *user, const char *successor, bool force, Problem *problem);
    /* Accept no more, answer what is under way, and return when no connection is left, or the exit timeout is over. */
    void (*leave)(void *user);
    void *user;
} ServerControl;

/* What all endpoints of HTTP have in common; what is pointed to stays the caller's, and has to stay. */
typedef struct {
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing; /* NULL: none */
    Jobs *jobs;
    Jobs *readers; /* for requests that take long to be read */
    CallsSettings calls;
    const HttpRestriction *restrictions;
    size_t restriction_count;
    const char *header_forward_pattern; /* a regular expression; NULL or "": none */
    /* Append the front's own metrics to those of the core; NULL: none. */
    void (*put_metrics)(void *user, Text *text);
    void *user;
    const ServerControl *control; /* of an admin endpoint; NULL: the process cannot be asked */
    /* Vertex AI's routes (AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE), and the model that it and SageMaker serve where nothing else says so; NULL: none. */
    const char *hosted_folder; /* in which SageMaker puts models that it has loaded; NULL: it does not */
    const char *sagemaker_inference; /* what /invocations is: "generate", "generate_stream", or NULL or "infer" */
    const char *vertex_health, *vertex_predict, *default_model;
} HttpSettings;

typedef struct HttpService HttpService;

/* An endpoint's service, to be freed after its last connection; NULL: a problem, such as a pattern that is none. */
HttpService *http_service_new(const HttpSettings *settings, HttpPaths paths, Problem *problem);
void http_service_free(HttpService *service);

/* Of an Endpoint, whose service is an HttpService. */
extern const Protocol http_protocol;

/* Whether a name is one that HttpRestriction may have. */
bool http_api_is_known(Slice name);

#endif
