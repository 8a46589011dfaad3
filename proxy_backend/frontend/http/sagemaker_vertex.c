/* The paths of Amazon SageMaker ("/ping", "/invocations"), and those of Google Vertex AI, which are given in
 * environment variables. Both run inferences of one model. The content type gives the size of the JSON in a body:
 * "...binary+json;json-header-size=17". sagemaker_mme.c has the paths of SageMaker's multi-model mode.
 */
#include "http/routes.h"

#include <stdio.h>

#define SAGEMAKER_TYPE "application/vnd.sagemaker-triton.binary+json;json-header-size="
#define VERTEX_TYPE "application/vnd.vertex-ai-triton.binary+json;json-header-size="

/* ── bodies ───────────────────────────────────────────────────────────────────────────────────────── */

static const char *content_type_of(const HttpService *service)
{
    return service->paths == HTTP_SAGEMAKER ? SAGEMAKER_TYPE : service->paths == HTTP_VERTEX_AI ? VERTEX_TYPE : NULL;
}

Slice sagemaker_vertex_json_size(const HttpService *service, const HttpHead *head)
{
    const char *type = content_type_of(service);
    Slice given = type ? http_header(head, "content-type") : (Slice){NULL, 0};
    return type && slice_starts_nocase(given, type) ? slice_after(given, strlen(type)) : (Slice){NULL, 0};
}

const char *sagemaker_vertex_response_type(Call *call, size_t json_bytes)
{
    const char *type = content_type_of(http_call(call)->service);
    size_t room = type ? strlen(type) + 24 : 0;
    char *text = type ? call_memory(call, room) : NULL;
    if (text)
        snprintf(text, room, "%s%zu", type, json_bytes);
    return text;
}

/* ── paths ────────────────────────────────────────────────────────────────────────────────────────── */

/* Returns whether the target is this path. */
static bool is_path(const Target *target, const char *path)
{
    Slice rest = slice_of(path), segment;
    if (rest.size == 0 || rest.start[0] != '/')
        return false;
    rest = slice_after(rest, 1);
    uint32_t count = 0;
    for (; slice_split(&rest, '/', &segment); count++)
        if (count == target->count || !slice_equals(segment, target->segments[count]))
            return false;
    return count == target->count;
}

/* Returns the handler of SageMaker's "/invocations", which the settings select. */
static HttpHandler *inference_of(const HttpService *service)
{
    Slice kind = slice_of(service->paths == HTTP_SAGEMAKER ? service->settings.sagemaker_inference : NULL);
    return slice_is(kind, "generate")       ? http_handle_generate
        : slice_is(kind, "generate_stream") ? http_handle_generate_stream
                                            : http_handle_infer;
}

static bool infer_default(HttpRequest *request, Problem *problem)
{
    const char *model = request->service->settings.default_model;
    if (model == NULL || *model == '\0')
        return problem_set(problem, PROBLEM_INVALID, "no model is configured for this path");
    request->name = slice_of(model);
    request->version = SLICE("");
    return inference_of(request->service)(request, problem);
}

/* Vertex AI forwards only the paths that it knows. The intended path may be in a header. */
static bool predict(HttpRequest *request, Problem *problem)
{
    Slice redirect = http_header(request->head, "x-vertex-ai-triton-redirect");
    if (redirect.start == NULL)
        return infer_default(request, problem);
    Buffer path = {0};
    Target target;
    buffer_put_char(&path, '/');
    buffer_put_slice(&path, redirect);
    bool read = !path.failed && target_read(&target, buffer_slice(&path), problem);
    buffer_free(&path);
    HttpRoute route;
    if (!read || !route_find_api(&target, &route))
        return problem_set(problem, PROBLEM_NOT_FOUND, "X-Vertex-Ai-Triton-Redirect names an unknown path");
    /* The method tells nothing, because all requests are POST. */
    HttpHandler *handler = route.post && request->body.size ? route.post : route.get ? route.get : route.post;
    request->name = route.name;
    request->version = route.version;
    request->repository = route.repository;
    return request_is_allowed(request, route.api, problem) && handler(request, problem);
}

bool sagemaker_vertex_route(const HttpService *service, const Target *target, HttpRoute *route)
{
    const HttpSettings *settings = &service->settings;
    bool sagemaker = service->paths == HTTP_SAGEMAKER;
    const char *health = sagemaker ? "/ping" : settings->vertex_health;
    const char *inference = sagemaker ? "/invocations" : settings->vertex_predict;
    if (service->sagemaker_models && sagemaker_mme_route(target, route))
        return true;
    *route = (HttpRoute){.name = SLICE(""), .version = SLICE(""), .repository = SLICE("")};
    if (health && is_path(target, health)) {
        route->api = API_HEALTH;
        route->get = service->sagemaker_models ? http_handle_live : http_handle_ready;
        return true;
    }
    route->api = API_INFERENCE;
    route->post = sagemaker ? infer_default : predict;
    return inference && is_path(target, inference);
}
