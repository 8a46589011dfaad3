#define _GNU_SOURCE
#include "startup/services.h"

#include "admin/log_settings.h"
#include "thread_pool/thread_pool.h"
#include "thread_pool/memory_trim.h"
#include "base/compression.h"
#include "base/log.h"
#include "calls/call.h"
#include "calls/response_cache.h"
#include "handover/handover.h"
#include "http/service.h"
#include "http2/nghttp2.h"
#include "startup/grpc_endpoint.h"
#include "relay/relay.h"
#include "tracing/tracing.h"

#include <netdb.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    /* each load in progress occupies one thread, and another one while the dispatcher carries it out */
    JOB_THREADS = 48,
    JOBS_WAITING = 1024,
    READER_THREADS = 2, /* large requests are read by this many threads, since each may need memory up to the limit */
    READERS_WAITING = 1 << 20, /* each connection has at most one job */
};

/* The protocol and the paths of a kind of listener. */
typedef struct {
    const char *name;
    bool is_grpc;
    HttpPaths paths;
    /* title of the log line, the same as NVIDIA's because scripts search for it; NULL if nothing is logged */
    const char *title;
} Kind;

static const Kind kinds[] = {
    {"http", false, HTTP_API, "HTTPService"},
    {"grpc", true, HTTP_API, "GRPCInferenceService"},
    {"metrics", false, HTTP_METRICS, "Metrics Service"},
    {"admin", false, HTTP_ADMIN, NULL},
    {"sagemaker", false, HTTP_SAGEMAKER, "Sagemaker HTTPService"},
    {"vertex_ai", false, HTTP_VERTEX_AI, "Vertex AI HTTPService"},
};

/* The kind of a listener that is not for clients. */
#define HANDOVER "handover"

struct Services {
    const Settings *settings;
    Server *server;
    SharedMemory *shared_memory;
    Tracing *tracing;
    ResponseCache *cache; /* NULL without a response cache */
    RouteTable *routes;
    ThreadPool *jobs, *readers;
    HttpRestriction *restrictions;
    Endpoint *endpoints;
    HandoverEndpoints handover;
    Endpoint relayed; /* for clients' connections that other processes of the daemon hand over */
};

static const Kind *kind_named(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    }
    return NULL;
}

static const char *path_or_default(const char *path, const char *usual)
{
    return path ? path : usual;
}

bool services_load(const Settings *settings, Problem *problem)
{
    Problem missing = {0};
    if (!compression_load(settings->z, &missing))
        log_warning("compressed requests will be refused: %s", problem_text(&missing));
    problem_clear(&missing);
    for (size_t i = 0; i < settings->listen_count; i++) {
        const ListenSetting *listen = &settings->listen[i];
        const Kind *kind = kind_named(listen->protocol);
        if (strcmp(listen->protocol, HANDOVER) == 0)
            continue;
        if (kind == NULL)
            return problem_set(problem, PROBLEM_INVALID, "there is no protocol '%s'", listen->protocol);
        if (kind->is_grpc && !nghttp2_load(path_or_default(settings->nghttp2, "libnghttp2.so.14"), problem))
            return false;
        if (listen->has_tls &&
            !tls_load(path_or_default(settings->crypto, "libcrypto.so.3"),
                path_or_default(settings->ssl, "libssl.so.3"), problem))
            return false;
    }
    return api_load(settings->core, problem);
}

/* The names are from https://github.com/triton-inference-server/server/blob/main/docs/user_guide/trace.md. */
static const TraceSteps http_steps = {"HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"};
static const TraceSteps grpc_steps = {"GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"};

static CallsSettings settings_of_calls(const Services *services, const TraceSteps *steps)
{
    CallsSettings calls = calls_settings(services->server, services->shared_memory);
    calls.tracing = services->tracing;
    calls.cache = services->cache;
    calls.steps = steps;
    const Limits *limits = &services->settings->limits;
    calls.inputs = limits->inputs;
    calls.output_bytes = limits->output_bytes;
    calls.kept_bytes = limits->kept_bytes;
    calls.kept_calls = limits->kept_calls;
    return calls;
}

/* Returns the settings that all HTTP endpoints share. */
static HttpSettings http_settings(const Services *services, const ServerControl *control)
{
    const Settings *settings = services->settings;
    return (HttpSettings){
        .server = services->server,
        .shared_memory = services->shared_memory,
        .tracing = services->tracing,
        .jobs = services->jobs,
        .readers = services->readers,
        .calls = settings_of_calls(services, &http_steps),
        .route_table = services->routes,
        .restrictions = services->restrictions,
        .restriction_count = settings->http_restricted.count,
        .header_forward_pattern = settings->http_forward,
        .put_metrics = services_put_metrics,
        .user = services->cache,
        .control = control,
        .sagemaker_folder = settings->sagemaker_folder,
        .sagemaker_inference = settings->sagemaker_inference,
        .vertex_health = settings->vertex_health,
        .vertex_predict = settings->vertex_predict,
    };
}

static void *make_http(const Services *services, HttpPaths paths, const ServerControl *control, Problem *problem)
{
    HttpSettings http = http_settings(services, control);
    http.default_model =
        paths == HTTP_SAGEMAKER ? services->settings->sagemaker_model : services->settings->vertex_model;
    return http_service_new(&http, paths, problem);
}

static void *make_grpc(const Services *services, Problem *problem)
{
    GrpcService service = {
        .base = {&GRPC_HANDLERS},
        .server = services->server,
        .shared_memory = services->shared_memory,
        .tracing = services->tracing,
        .jobs = services->jobs,
        .readers = services->readers,
    };
    CallsSettings calls = settings_of_calls(services, &grpc_steps);
    return grpc_endpoint_new(&service, &calls, services->settings, problem);
}

static bool is_unix(int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    return getsockname(fd, (struct sockaddr *)&address, &size) == 0 && address.ss_family == AF_UNIX;
}

static bool make_endpoint(
    Services *services, const ListenSetting *listen, Endpoint *endpoint, const ServerControl *control, Problem *problem)
{
    const Kind *kind = kind_named(listen->protocol);
    endpoint->fd = listen->fd;
    endpoint->limits = &services->settings->limits;
    if (strcmp(listen->protocol, HANDOVER) == 0) {
        endpoint->is_admin = true;
        endpoint->protocol = &handover_protocol;
        endpoint->service = &services->handover;
        return is_unix(listen->fd) ||
            problem_set(problem, PROBLEM_INVALID, "connections can only be handed over on a unix socket");
    }
    endpoint->is_admin = kind->paths == HTTP_ADMIN;
    endpoint->protocol = kind->is_grpc ? &GRPC_PROTOCOL : &http_protocol;
    endpoint->service =
        kind->is_grpc ? make_grpc(services, problem) : make_http(services, kind->paths, control, problem);
    if (endpoint->service == NULL)
        return false;
    if (listen->relays && !listen->has_tls && is_unix(listen->fd))
        endpoint->relays = &services->relayed;
    if (listen->has_tls)
        endpoint->tls = tls_new(&listen->tls, endpoint->protocol->alpn, problem);
    return !listen->has_tls || endpoint->tls;
}

static void free_endpoint(Endpoint *endpoint)
{
    if (endpoint->service && endpoint->protocol == &GRPC_PROTOCOL)
        grpc_endpoint_free(endpoint->service);
    else if (endpoint->service && endpoint->protocol == &http_protocol)
        http_service_free(endpoint->service);
    tls_free((Tls *)endpoint->tls);
}

static bool copy_restrictions(Services *services, Problem *problem)
{
    const RestrictionSettings *all = &services->settings->http_restricted;
    services->restrictions = calloc(all->count + 1, sizeof *services->restrictions);
    if (services->restrictions == NULL)
        return problem_no_memory(problem);
    for (size_t i = 0; i < all->count; i++)
        services->restrictions[i] = (HttpRestriction){all->all[i].api, all->all[i].header, all->all[i].value};
    return true;
}

/* Write to the core's log, which its options and clients can configure. */
static void log_by_core(LogLevel level, const char *file, int line, const char *text)
{
    TRITONSERVER_Error *error = triton.LogMessage((int)level, file, line, text);
    if (error)
        triton.ErrorDelete(error);
}

static bool start(Services *services, const ServerControl *control, Problem *problem)
{
    const Settings *settings = services->settings;
    services->endpoints = calloc(settings->listen_count + 1, sizeof *services->endpoints);
    if (services->endpoints == NULL)
        return problem_no_memory(problem);
    services->server = server_start(settings->core, settings->options, settings->option_count, problem);
    if (services->server == NULL)
        return false;
    log_through(log_by_core);
    server_force_unready(services->server, settings->not_ready);
    PendingModelsSettings pending_models = settings->pending_models; /* The names stay in `settings`. */
    services->server->pending_models = pending_models.names.count ? pending_models_new(&pending_models, problem) : NULL;
    if (pending_models.names.count && services->server->pending_models == NULL)
        return false;
    services->shared_memory = shared_memory_new(settings->limits.regions, settings->regions_fd, problem);
    if (settings->response_cache_bytes) {
        services->cache = response_cache_new(services->server, settings->response_cache_bytes, problem);
        if (services->cache == NULL)
            return false;
    }
    services->routes = route_table_new();
    if (services->routes == NULL)
        return problem_no_memory(problem);
    if (settings->routes.start && !route_table_replace(services->routes, settings->routes, problem))
        return false;
    services->tracing = services->shared_memory ? tracing_new(services->server, problem) : NULL;
    services->jobs = services->tracing ? thread_pool_new(JOB_THREADS, JOBS_WAITING, problem) : NULL;
    services->readers = services->jobs ? thread_pool_new(READER_THREADS, READERS_WAITING, problem) : NULL;
    if (services->readers == NULL || !memory_trim_start(problem) || !copy_restrictions(services, problem))
        return false;
    services->handover = (HandoverEndpoints){services->endpoints, settings->listen_count};
    services->relayed = (Endpoint){
        .fd = -1, .protocol = &relay_protocol, .limits = &settings->limits, .is_admin = true, .is_shared = true};
    for (size_t i = 0; i < settings->listen_count; i++) {
        if (!make_endpoint(services, &settings->listen[i], &services->endpoints[i], control, problem))
            return false;
    }
    return true;
}

Services *services_start(const Settings *settings, const ServerControl *control, Problem *problem)
{
    Services *services = calloc(1, sizeof *services);
    if (services == NULL) {
        problem_no_memory(problem);
        return NULL;
    }
    services->settings = settings;
    if (start(services, control, problem))
        return services;
    if (services->server)
        services_stop(services);
    services_free(services);
    return NULL;
}

const HandoverEndpoints *services_endpoints(const Services *services)
{
    return &services->handover;
}

static void announce(const char *title, int fd)
{
    struct sockaddr_storage address = {0};
    socklen_t size = sizeof address;
    char host[64] = "", port[8] = "";
    if (getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        return;
    if (address.ss_family == AF_UNIX)
        log_info("Started %s at %s", title, ((struct sockaddr_un *)&address)->sun_path);
    else if (getnameinfo((struct sockaddr *)&address, size, host, sizeof host, port, sizeof port,
                 NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        log_info(address.ss_family == AF_INET6 ? "Started %s at [%s]:%s" : "Started %s at %s:%s", title, host, port);
}

void services_announce(const Services *services)
{
    log_settings_report(services->server);
    for (size_t i = 0; i < services->settings->listen_count; i++) {
        const Kind *kind = kind_named(services->settings->listen[i].protocol);
        if (kind && kind->title)
            announce(kind->title, services->settings->listen[i].fd);
    }
}

Server *services_server(const Services *services)
{
    return services->server;
}

void services_stop(Services *services)
{
    Problem problem = {0};
    thread_pool_stop(services->readers); /* Stop these first, because they submit jobs. */
    thread_pool_stop(services->jobs);
    if (!server_stop(services->server, &problem))
        log_warning("Triton's core did not stop cleanly: %s", problem_text(&problem));
    problem_clear(&problem);
}

void services_free(Services *services)
{
    memory_trim_stop();
    thread_pool_free(services->readers);
    thread_pool_free(services->jobs);
    for (size_t i = 0; services->endpoints && i < services->settings->listen_count; i++)
        free_endpoint(&services->endpoints[i]);
    if (services->tracing)
        tracing_free(services->tracing);
    response_cache_free(services->cache);
    route_table_free(services->routes);
    if (services->shared_memory)
        shared_memory_free(services->shared_memory);
    if (services->server)
        server_free(services->server);
    free(services->endpoints);
    free(services->restrictions);
    free(services);
}

static void put_cache_metrics(ResponseCache *cache, Buffer *text)
{
    ResponseCacheCounts counts = response_cache_counts(cache);
    buffer_format(text,
        "# HELP pytriton_frontend_response_cache_hits_total Requests answered from the response cache\n"
        "# TYPE pytriton_frontend_response_cache_hits_total counter\n"
        "pytriton_frontend_response_cache_hits_total %llu\n"
        "# HELP pytriton_frontend_response_cache_misses_total Requests the response cache had no answer for\n"
        "# TYPE pytriton_frontend_response_cache_misses_total counter\n"
        "pytriton_frontend_response_cache_misses_total %llu\n"
        "# HELP pytriton_frontend_response_cache_entries Responses in the response cache\n"
        "# TYPE pytriton_frontend_response_cache_entries gauge\n"
        "pytriton_frontend_response_cache_entries %llu\n"
        "# HELP pytriton_frontend_response_cache_bytes Memory used by the response cache\n"
        "# TYPE pytriton_frontend_response_cache_bytes gauge\n"
        "pytriton_frontend_response_cache_bytes %llu\n",
        (unsigned long long)counts.hits, (unsigned long long)counts.misses, (unsigned long long)counts.entries,
        (unsigned long long)counts.bytes);
}

void services_put_metrics(void *user, Buffer *text)
{
    ResponseCache *cache = user;
    if (cache)
        put_cache_metrics(cache, text);
    buffer_format(text,
        "# HELP pytriton_frontend_connections Connections of clients that are open\n"
        "# TYPE pytriton_frontend_connections gauge\n"
        "pytriton_frontend_connections %llu\n"
        "# HELP pytriton_frontend_connections_accepted_total Connections of clients that were accepted\n"
        "# TYPE pytriton_frontend_connections_accepted_total counter\n"
        "pytriton_frontend_connections_accepted_total %llu\n"
        "# HELP pytriton_frontend_refusals_total What clients were refused, by the limit that they met\n"
        "# TYPE pytriton_frontend_refusals_total counter\n",
        (unsigned long long)connections_count(), (unsigned long long)connections_accepted());
    for (int i = 0; i < REFUSALS; i++)
        buffer_format(text, "pytriton_frontend_refusals_total{limit=\"%s\"} %llu\n", refusal_name((Refusal)i),
            (unsigned long long)refusals_read((Refusal)i));
}
