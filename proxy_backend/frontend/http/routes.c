/* The HTTP paths, with their methods, APIs and handlers. */
#include "http/routes.h"

#include "base/log.h"
#include "http/connection.h"
#include "http/error_log.h"
#include "http/typed.h"
#include "http1/browsers.h"

#include <stdlib.h>

/* A path: literal segments, "*" for a name, and "#" for a number. */
typedef struct {
    const char *const segments[8];
    HttpApi api;
    HttpHandler *get, *post;
} Pattern;

static const Pattern patterns[] = {
    {{"v2", "models", "*", "infer"}, API_INFERENCE, NULL, http_handle_infer},
    {{"v2", "models", "*", "versions", "#", "infer"}, API_INFERENCE, NULL, http_handle_infer},
    {{"v2", "models", "*", "generate"}, API_INFERENCE, NULL, http_handle_generate},
    {{"v2", "models", "*", "versions", "#", "generate"}, API_INFERENCE, NULL, http_handle_generate},
    {{"v2", "models", "*", "generate_stream"}, API_INFERENCE, NULL, http_handle_generate_stream},
    {{"v2", "models", "*", "versions", "#", "generate_stream"}, API_INFERENCE, NULL, http_handle_generate_stream},
    {{"v2", "health", "live"}, API_HEALTH, http_handle_live, NULL},
    {{"v2", "health", "ready"}, API_HEALTH, http_handle_ready, NULL},
    {{"v2", "models", "stats"}, API_STATISTICS, http_handle_statistics, NULL},
    {{"v2", "models", "*", "ready"}, API_HEALTH, http_handle_model_ready, NULL},
    {{"v2", "models", "*", "versions", "#", "ready"}, API_HEALTH, http_handle_model_ready, NULL},
    {{"v2", "models", "*"}, API_METADATA, http_handle_model, NULL},
    {{"v2", "models", "*", "versions", "#"}, API_METADATA, http_handle_model, NULL},
    {{"v2", "models", "*", "config"}, API_MODEL_CONFIG, http_handle_config, NULL},
    {{"v2", "models", "*", "versions", "#", "config"}, API_MODEL_CONFIG, http_handle_config, NULL},
    {{"v2", "models", "*", "stats"}, API_STATISTICS, http_handle_model_statistics, NULL},
    {{"v2", "models", "*", "versions", "#", "stats"}, API_STATISTICS, http_handle_model_statistics, NULL},
    {{"v2", "models", "*", "trace", "setting"}, API_TRACE, http_handle_trace_read, http_handle_trace_change},
    {{"v2", "trace", "setting"}, API_TRACE, http_handle_trace_read, http_handle_trace_change},
    {{"v2", "logging"}, API_LOGGING, http_handle_log_read, http_handle_log_change},
    {{"v2"}, API_METADATA, http_handle_server, NULL},
    {{"v2", "repository", "index"}, API_MODEL_REPOSITORY, NULL, http_handle_index},
    {{"v2", "repository", "+", "index"}, API_MODEL_REPOSITORY, NULL, http_handle_index},
    {{"v2", "repository", "models", "*", "load"}, API_MODEL_REPOSITORY, NULL, http_handle_load},
    {{"v2", "repository", "+", "models", "*", "load"}, API_MODEL_REPOSITORY, NULL, http_handle_load},
    {{"v2", "repository", "models", "*", "unload"}, API_MODEL_REPOSITORY, NULL, http_handle_unload},
    {{"v2", "repository", "+", "models", "*", "unload"}, API_MODEL_REPOSITORY, NULL, http_handle_unload},
    {{"v2", "systemsharedmemory", "status"}, API_SHARED_MEMORY, http_handle_region_status, NULL},
    {{"v2", "systemsharedmemory", "region", "*", "status"}, API_SHARED_MEMORY, http_handle_region_status, NULL},
    {{"v2", "systemsharedmemory", "region", "*", "register"}, API_SHARED_MEMORY, NULL, http_handle_region_register},
    {{"v2", "systemsharedmemory", "unregister"}, API_SHARED_MEMORY, NULL, http_handle_region_unregister},
    {{"v2", "systemsharedmemory", "region", "*", "unregister"}, API_SHARED_MEMORY, NULL, http_handle_region_unregister},
    {{"v2", "cudasharedmemory", "status"}, API_SHARED_MEMORY, http_handle_gpu_status, NULL},
    {{"v2", "cudasharedmemory", "region", "*", "status"}, API_SHARED_MEMORY, http_handle_gpu_status, NULL},
    {{"v2", "cudasharedmemory", "region", "*", "register"}, API_SHARED_MEMORY, NULL, http_handle_gpu_register},
    {{"v2", "cudasharedmemory", "unregister"}, API_SHARED_MEMORY, NULL, http_handle_gpu_unregister},
    {{"v2", "cudasharedmemory", "region", "*", "unregister"}, API_SHARED_MEMORY, NULL, http_handle_gpu_unregister},
};

static const Pattern metrics_patterns[] = {
    {{"metrics"}, API_OTHER, http_handle_metrics, NULL},
};

static const Pattern admin_patterns[] = {
    {{"admin", "accept"}, API_OTHER, NULL, http_handle_accept},
    {{"admin", "drain"}, API_OTHER, NULL, http_handle_drain},
    {{"admin", "forget"}, API_OTHER, NULL, http_handle_settle},
    {{"admin", "leave"}, API_OTHER, NULL, http_handle_leave},
    {{"admin", "ready"}, API_OTHER, NULL, http_handle_set_ready},
    {{"admin", "routes"}, API_OTHER, NULL, http_handle_replace_routes},
    {{"admin", "retire"}, API_OTHER, NULL, http_handle_retire},
    {{"admin", "work"}, API_OTHER, http_handle_work, NULL},
};

static const char *const api_names[] = {"health", "metadata", "inference", "shared-memory", "model-config",
    "model-repository", "statistics", "trace", "logging"};

static bool is_number(Slice text)
{
    for (size_t i = 0; i < text.size; i++)
        if (text.start[i] < '0' || text.start[i] > '9')
            return false;
    return text.size > 0;
}

/* Match a path with a pattern. The names in the path are stored in `route`. */
static bool matches(const Pattern *pattern, const Target *target, HttpRoute *route)
{
    HttpRoute found = {.name = SLICE(""), .version = SLICE(""), .repository = SLICE("")};
    for (uint32_t i = 0; i < 8 && (i < target->count || pattern->segments[i]); i++) {
        const char *said = pattern->segments[i];
        if (said == NULL || i >= target->count || target->segments[i].size == 0)
            return false;
        Slice segment = target->segments[i];
        if (said[0] == '*')
            found.name = segment;
        else if (said[0] == '+')
            found.repository = segment;
        else if (said[0] == '#' && is_number(segment))
            found.version = segment;
        else if (!slice_is(segment, said))
            return false;
    }
    found.api = pattern->api;
    found.get = pattern->get;
    found.post = pattern->post;
    *route = found;
    return true;
}

static bool find_in(const Pattern *list, size_t count, const Target *target, HttpRoute *route)
{
    for (size_t i = 0; i < count; i++)
        if (matches(&list[i], target, route))
            return true;
    return false;
}

#define FIND(list) find_in(list, sizeof(list) / sizeof *(list), target, route)

bool route_find_api(const Target *target, HttpRoute *route)
{
    return FIND(patterns);
}

/* Find a path. Returns false if it does not exist. */
static bool route_find(const HttpService *service, const Target *target, HttpRoute *route)
{
    switch (service->paths) {
    case HTTP_METRICS:
        return FIND(metrics_patterns);
    case HTTP_ADMIN:
        return FIND(patterns) || FIND(metrics_patterns) || FIND(admin_patterns);
    case HTTP_SAGEMAKER:
    case HTTP_VERTEX_AI:
        return sagemaker_vertex_route(service, target, route);
    default:
        return FIND(patterns);
    }
}

/* ── a request ────────────────────────────────────────────────────────────────────────────────────── */

/* Compare in constant time. */
static bool is_secret(Slice given, const char *secret)
{
    size_t size = strlen(secret);
    unsigned char differs = given.size != size;
    for (size_t i = 0; i < given.size; i++)
        differs |= (unsigned char)(given.start[i] ^ secret[size ? i % size : 0]);
    return !differs;
}

bool request_is_allowed(const HttpRequest *request, HttpApi api, Problem *problem)
{
    const HttpRestriction *restriction =
        api == API_OTHER || request->is_admin ? NULL : request->service->restrictions[api];
    if (restriction == NULL)
        return true;
    Slice given = http_header(request->head, restriction->header);
    if (given.start && !http_header_repeats(request->head, restriction->header) && is_secret(given, restriction->value))
        return true;
    refusals_count(REFUSED_RESTRICTED);
    return problem_set(
        problem, PROBLEM_FORBIDDEN, "This API is restricted, expecting header '%s'", restriction->header);
}

/* Returns whether the client has connected to this port of a loopback address. 0 stands for the default port of the
 * scheme.
 */
static bool is_loopback_port(const Connection *connection, uint64_t port)
{
    uint16_t own = connection_loopback_port(connection);
    return own && (port == own || (port == 0 && (own == 80 || own == 443)));
}

/* Check that the request was not sent by a browser on behalf of another site's page. Returns false with a problem. */
static bool request_is_of_own_site(const HttpRequest *request, Problem *problem)
{
    uint64_t port;
    if (request->is_admin)
        return true;
    if (browser_is_cross_site(request->head))
        problem_set(problem, PROBLEM_FORBIDDEN,
            "this request comes from a page of another site; only this server's own pages may send it");
    else if (browser_names_public_host(request->head, &port) &&
        is_loopback_port(http_call(request->call)->connection, port))
        problem_set(problem, PROBLEM_FORBIDDEN,
            "the header Host has a public name, but the connection came to a loopback address: use 127.0.0.1, "
            "localhost, or the machine's name");
    else
        return true;
    refusals_count(REFUSED_OTHER_SITE);
    return false;
}

/* Returns the handler for the request's method, or NULL. */
static HttpHandler *handler_of(const HttpRequest *request, const HttpRoute *route)
{
    HttpMethod method = request->head->method;
    if (method == HTTP_GET || method == HTTP_HEAD)
        return route->get;
    return method == HTTP_POST ? route->post : method == HTTP_DELETE ? route->delete : NULL;
}

bool request_is_typed(const HttpService *service, Slice path)
{
    RouteTable *table = service->paths == HTTP_API ? service->settings.route_table : NULL;
    Problem ignored = {0};
    HttpRoute route;
    Target target;
    Routes *routes;
    bool found = table && target_read(&target, path, &ignored) && !route_find(service, &target, &route) &&
        route_table_find(table, &target, &routes);
    if (found)
        routes_release(routes);
    problem_clear(&ignored);
    return found;
}

/* Answer a request for a path of the dispatcher's table. Returns false if it is for none of them. */
static bool run_typed(HttpRequest *request)
{
    RouteTable *table = request->service->paths == HTTP_API ? request->service->settings.route_table : NULL;
    Routes *routes;
    const Route *route = table ? route_table_find(table, request->target, &routes) : NULL;
    if (route == NULL)
        return false;
    Problem problem = {0};
    HttpCall *state = http_call(request->call);
    state->is_typed = true;
    state->headers = NULL; /* of an earlier attempt, before it waited for its model */
    bool is_allowed_origin = typed_allows_origin(request, routes);
    if (is_allowed_origin || request_is_of_own_site(request, &problem))
        typed_run(request, route, is_allowed_origin);
    else
        response_send_problem(request->call, &problem);
    routes_release(routes);
    return true;
}

/* Set the problem of a path that nothing is served at. Outside of Triton's API, paths belong to typed functions, if there
 * are any. Their clients expect problem details, and the page /openapi.json lists them.
 */
static void set_not_found(HttpRequest *request, Problem *problem)
{
    const HttpService *service = request->service;
    const Target *target = request->target;
    RouteTable *table = service->paths == HTTP_API ? service->settings.route_table : NULL;
    bool is_of_triton = target->count > 0 && slice_is(target->segments[0], "v2");
    http_call(request->call)->is_typed = table && route_table_has_routes(table) && !is_of_triton;
    problem_set(problem, PROBLEM_NOT_FOUND,
        http_call(request->call)->is_typed
            ? "nothing is served at this path; /openapi.json lists the paths of typed functions"
            : "Not Found");
}

void request_run(HttpRequest *request)
{
    Problem problem = {0};
    HttpRoute route;
    bool is_found = route_find(request->service, request->target, &route);
    if (!is_found || route.api == API_INFERENCE)
        error_log_begin(request->call, request->head);
    if (!is_found && run_typed(request))
        return;
    if (!request_is_of_own_site(request, &problem)) {
        response_send_problem(request->call, &problem);
        return;
    }
    if (!is_found) {
        set_not_found(request, &problem);
        response_send_problem(request->call, &problem);
        return;
    }
    HttpHandler *handler = handler_of(request, &route);
    if (handler == NULL) {
        http_call(request->call)->allow = route.get && route.post ? "GET, HEAD, POST"
            : route.get                                           ? "GET, HEAD"
            : route.delete                                        ? "POST, DELETE"
                                                                  : "POST";
        problem_set(&problem, PROBLEM_METHOD, "Method Not Allowed");
        response_send_problem(request->call, &problem);
        return;
    }
    request->name = route.name;
    request->version = route.version;
    request->repository = route.repository;
    if ((!request_is_allowed(request, route.api, &problem) || !handler(request, &problem)) &&
        !request_wait_for_model(request->call, &problem))
        response_send_problem(request->call, &problem);
}

/* ── services ─────────────────────────────────────────────────────────────────────────────────────── */

static bool api_named(Slice name, HttpApi *api)
{
    for (size_t i = 0; i < sizeof api_names / sizeof *api_names; i++)
        if (slice_is(name, api_names[i])) {
            *api = (HttpApi)i;
            return true;
        }
    return false;
}

static bool take_restrictions(HttpService *service, Problem *problem)
{
    for (size_t i = 0; i < service->settings.restriction_count; i++) {
        const HttpRestriction *restriction = &service->settings.restrictions[i];
        HttpApi api;
        if (!api_named(slice_of(restriction->api), &api))
            return problem_set(
                problem, PROBLEM_INVALID, "cannot restrict the API '%s', which does not exist", restriction->api);
        if (service->restrictions[api])
            return problem_set(problem, PROBLEM_INVALID, "the API '%s' is restricted twice", restriction->api);
        service->restrictions[api] = restriction;
    }
    return true;
}

HttpService *http_service_new(const HttpSettings *settings, HttpPaths paths, Problem *problem)
{
    HttpService *service = calloc(1, sizeof *service);
    if (service == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    service->settings = *settings;
    service->paths = paths;
    if (paths == HTTP_SAGEMAKER && settings->sagemaker_folder) {
        service->sagemaker_models = sagemaker_models_new();
        if (service->sagemaker_models == NULL)
            problem_no_memory(problem);
    }
    const char *pattern = settings->header_forward_pattern;
    if (pattern && *pattern)
        service->forward = header_pattern_new(pattern, HEADER_PART, problem);
    if (problem->kind == PROBLEM_NONE && take_restrictions(service, problem))
        return service;
    http_service_free(service);
    return NULL;
}

void http_service_free(HttpService *service)
{
    header_pattern_free(service->forward);
    sagemaker_models_free(service->sagemaker_models);
    free(service);
}
