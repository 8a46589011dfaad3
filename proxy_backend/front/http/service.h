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
    /* Admin: have the server end, as SIGTERM does; NULL: it cannot be asked. */
    void (*drain)(void *user);
    void *user;
    /* Vertex AI's routes (AIP_HEALTH_ROUTE, AIP_PREDICT_ROUTE), and the model that it and SageMaker serve where nothing else says so; NULL: none. */
    const char *hosted_folder; /* in which SageMaker puts models that it has loaded; NULL: it does not */
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
