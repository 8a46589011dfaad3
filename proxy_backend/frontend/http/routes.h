/* The paths. */
#ifndef PYTRITON_FRONTEND_HTTP_ROUTES_H
#define PYTRITON_FRONTEND_HTTP_ROUTES_H

#include "http/request.h"

typedef struct {
    HttpApi api;
    HttpHandler *get, *post, *delete;
    Slice name, version, repository; /* from the path; "": absent */
} HttpRoute;

/* Find one of KServe's paths. */
bool route_find_api(const Target *target, HttpRoute *route);
/* Returns whether a request may use an API: it is not restricted, or the token is correct. */
bool request_is_allowed(const HttpRequest *request, HttpApi api, Problem *problem);
/* Find a path of SageMaker or Vertex AI (sagemaker_vertex.c). */
bool sagemaker_vertex_route(const HttpService *service, const Target *target, HttpRoute *route);

/* SageMaker's models (sagemaker_mme.c). NULL without memory. */
SagemakerModels *sagemaker_models_new(void);
void sagemaker_models_free(SagemakerModels *hosted);
/* Find one of its paths. */
bool sagemaker_mme_route(const Target *target, HttpRoute *route);

#endif
