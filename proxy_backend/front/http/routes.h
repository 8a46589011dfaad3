/* The paths. */
#ifndef PYTRITON_FRONT_HTTP_ROUTES_H
#define PYTRITON_FRONT_HTTP_ROUTES_H

#include "http/request.h"

typedef struct {
    HttpApi api;
    HttpHandler *get, *post, *delete;
    Slice name, version, repository; /* from the path; "": absent */
} HttpRoute;

/* Returns false if there is no such path. */
bool route_find(const HttpService *service, const Target *target, HttpRoute *route);
/* Find one of KServe's paths. */
bool route_find_api(const Target *target, HttpRoute *route);
/* Returns whether a request may use an API: it is not restricted, or the token is correct. */
bool request_is_allowed(const HttpRequest *request, HttpApi api, Problem *problem);
/* Find a path of SageMaker or Vertex AI (cloud.c). */
bool cloud_route(const HttpService *service, const Target *target, HttpRoute *route);

/* SageMaker's models (hosted.c). NULL without memory. */
HostedModels *hosted_new(void);
void hosted_free(HostedModels *hosted);
/* Find one of its paths. */
bool hosted_route(const Target *target, HttpRoute *route);

#endif
