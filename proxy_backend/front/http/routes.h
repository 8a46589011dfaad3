/* Which path is what. */
#ifndef PYTRITON_FRONT_HTTP_ROUTES_H
#define PYTRITON_FRONT_HTTP_ROUTES_H

#include "http/request.h"

typedef struct {
    HttpApi api;
    HttpHandler *get, *post, *delete;
    Slice name, version, repository; /* of the path; "": not there */
} HttpRoute;

/* False: there is no such path. */
bool route_find(const HttpService *service, const Target *target, HttpRoute *route);
/* The same, of KServe's paths. */
bool route_find_api(const Target *target, HttpRoute *route);
/* Whether a request may use an API: it is not restricted, or the token is there. */
bool request_is_allowed(const HttpRequest *request, HttpApi api, Problem *problem);
/* The same for SageMaker and Vertex AI (cloud.c). */
bool cloud_route(const HttpService *service, const Target *target, HttpRoute *route);

/* SageMaker's models (hosted.c). NULL: there is no memory. */
HostedModels *hosted_new(void);
void hosted_free(HostedModels *hosted);
/* The same for its paths. */
bool hosted_route(const Target *target, HttpRoute *route);

#endif
