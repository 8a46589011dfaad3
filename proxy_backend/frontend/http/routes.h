/* Finds the handler of a path. */
#ifndef PYTRITON_FRONTEND_HTTP_ROUTES_H
#define PYTRITON_FRONTEND_HTTP_ROUTES_H

#include "http/request.h"

typedef struct {
    HttpApi api;
    HttpHandler *get, *post, *delete;
    Slice name, version, repository; /* from the path; "" if absent */
} HttpRoute;

/* Find one of KServe's paths. */
bool route_find_api(const Target *target, HttpRoute *route);
/* Returns whether a request may use an API: the API is not restricted, or the request has the right token. */
bool request_is_allowed(const HttpRequest *request, HttpApi api, Problem *problem);
/* Find a path of SageMaker or Vertex AI (sagemaker_vertex.c). */
bool sagemaker_vertex_route(const HttpService *service, const Target *target, HttpRoute *route);

/* Create the set of models that SageMaker has loaded (sagemaker_mme.c). Returns NULL without memory. */
SagemakerModels *sagemaker_models_new(void);
void sagemaker_models_free(SagemakerModels *hosted);
/* Find a path of SageMaker's multi-model mode. */
bool sagemaker_mme_route(const Target *target, HttpRoute *route);

#endif
