/* The paths of SageMaker's multi-model mode. SageMaker copies models to directories, and loads, lists, invokes and
 * unloads them under names that it chooses.
 *
 *     POST /models {"model_name": "NAME", "url": "/opt/ml/models/NAME/model"}   the directory contains that of a model, or
 *                                                                               those of an ensemble and its parts
 *     GET /models, GET /models/NAME, DELETE /models/NAME, POST /models/NAME/invoke
 *
 * See "Custom Containers Contract for Multi-Model Endpoints" in SageMaker's documentation: the status is 409 if the name
 * exists, and 507 if memory is lacking.
 */
#define _GNU_SOURCE
#include "admin/repository.h"
#include "base/name_table.h"
#include "http/routes.h"
#include "json/reader.h"
#include "common/json_writer.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

typedef struct {
    char *url;
    bool is_loaded;
} Model;

struct SagemakerModels {
    pthread_mutex_t lock;
    NameTable models; /* guarded by the lock */
};

SagemakerModels *sagemaker_models_new(void)
{
    SagemakerModels *hosted = calloc(1, sizeof *hosted);
    if (hosted)
        pthread_mutex_init(&hosted->lock, NULL);
    return hosted;
}

static void free_model(Model *model)
{
    if (model)
        free(model->url);
    free(model);
}

void sagemaker_models_free(SagemakerModels *hosted)
{
    size_t at = 0;
    Slice name;
    void *model;
    if (hosted == NULL)
        return;
    while (name_table_next(&hosted->models, &at, &name, &model))
        free_model(model);
    name_table_free(&hosted->models);
    pthread_mutex_destroy(&hosted->lock);
    free(hosted);
}

static HttpService *service_of(Call *call)
{
    return http_call(call)->service;
}

/* ── the table ────────────────────────────────────────────────────────────────────────────────────── */

/* Reserve a name before its model is loaded. */
static bool reserve(SagemakerModels *hosted, Slice name, Slice url, Problem *problem)
{
    Model *model = calloc(1, sizeof *model);
    if (model)
        model->url = slice_copy(url);
    bool good = model && model->url;
    pthread_mutex_lock(&hosted->lock);
    bool exists = name_table_get(&hosted->models, name) != NULL;
    good = good && !exists && name_table_put(&hosted->models, name, model);
    pthread_mutex_unlock(&hosted->lock);
    if (good)
        return true;
    free_model(model);
    return exists ? problem_set(problem, PROBLEM_EXISTS, "a model with this name is already loaded")
                  : problem_no_memory(problem);
}

/* Remove a model. Returns its directory for free(), or NULL if the model is absent or not loaded. */
static char *take_out(SagemakerModels *hosted, Slice name, bool loaded)
{
    char *url = NULL;
    pthread_mutex_lock(&hosted->lock);
    Model *model = name_table_get(&hosted->models, name);
    if (model && model->is_loaded == loaded) {
        name_table_remove(&hosted->models, name);
        url = model->url;
        free(model);
    }
    pthread_mutex_unlock(&hosted->lock);
    return url;
}

static void set_loaded(SagemakerModels *hosted, Slice name)
{
    pthread_mutex_lock(&hosted->lock);
    Model *model = name_table_get(&hosted->models, name);
    if (model)
        model->is_loaded = true;
    pthread_mutex_unlock(&hosted->lock);
}

static bool not_loaded_problem(Problem *problem)
{
    return problem_set(problem, PROBLEM_NOT_FOUND, "no model with this name is loaded");
}

/* ── load ─────────────────────────────────────────────────────────────────────────────────────────── */

/* Returns whether a directory contains an ensemble. Sets `found` if it has a configuration at all. */
static bool is_ensemble(const char *folder, const char *name, bool *found)
{
    Buffer path = {0}, text = {0};
    buffer_format(&path, "%s/%s/config.pbtxt", folder, name);
    FILE *file = buffer_string(&path) ? fopen(buffer_string(&path), "re") : NULL;
    *found = file != NULL;
    if (file && buffer_reserve(&text, MAX_CONFIG_BYTES))
        text.size = fread(text.data, 1, MAX_CONFIG_BYTES, file);
    bool ensemble = text.size && memmem(text.data, text.size, "ensemble_scheduling", strlen("ensemble_scheduling"));
    if (file)
        fclose(file);
    buffer_free(&path);
    buffer_free(&text);
    return ensemble;
}

/* Returns the name of the subdirectory with the model to load, or NULL with a problem. */
static char *find_model(const char *folder, Problem *problem)
{
    DIR *listing = opendir(folder);
    char *chosen = NULL;
    size_t count = 0;
    bool found, ensemble = false;
    for (struct dirent *entry; listing && (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        bool is_one = is_ensemble(folder, entry->d_name, &found);
        if (!found || (ensemble && !is_one))
            continue;
        count = ensemble == is_one ? count + 1 : 1;
        ensemble = is_one;
        free(chosen);
        chosen = strdup(entry->d_name);
    }
    if (listing)
        closedir(listing);
    if (count == 1 && chosen)
        return chosen;
    free(chosen);
    problem_set(
        problem, PROBLEM_INVALID, "%s has %zu model directories with a config.pbtxt instead of one", folder, count);
    return NULL;
}

/* Report that a load failed for lack of memory, after which SageMaker unloads other models and tries again. */
static void mark_out_of_memory(Problem *problem)
{
    static const char *const signs[] = {"out of memory", "OUT_OF_MEMORY", "failed to allocate", "Failed to allocate",
        "ALLOC_FAILED", "No space left on device", "Src tensor is not properly initialized"};
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strstr(problem_text(problem), signs[i]))
            problem->kind = PROBLEM_STORAGE;
}

static bool load_from(Server *server, const char *folder, Slice name, Problem *problem)
{
    char *found = find_model(folder, problem), *copy = slice_copy(name);
    TRITONSERVER_Parameter *mapping = found && copy ? triton.ParameterNew(found, PARAMETER_STRING, copy) : NULL;
    const TRITONSERVER_Parameter *mappings[] = {mapping};
    bool registered =
        mapping && api_succeeded(triton.ServerRegisterModelRepository(server->server, folder, mappings, 1), problem);
    bool loaded = registered && repository_load(server, SLICE(""), name, NULL, 0, problem);
    if (registered && !loaded) {
        mark_out_of_memory(problem);
        api_ignore(triton.ServerUnregisterModelRepository(server->server, folder), "unregistering a model repository");
    }
    if (mapping)
        triton.ParameterDelete(mapping);
    free(found);
    free(copy);
    return loaded || (problem->kind == PROBLEM_NONE && problem_no_memory(problem));
}

/* Accept only paths to which SageMaker copies models. */
static bool check_url(const char *root, Slice url, Problem *problem)
{
    Slice rest = url, segment;
    bool inside = slice_starts(url, root) && url.size > strlen(root) && url.start[strlen(root)] == '/';
    while (inside && slice_split(&rest, '/', &segment))
        inside = !slice_is(segment, "..");
    return inside && memchr(url.start, 0, url.size) == NULL
        ? true
        : problem_set(problem, PROBLEM_INVALID, "\"url\" must be a directory in %s", root);
}

static bool read_load_request(Slice body, const Limits *limits, Buffer *name, Buffer *url, Problem *problem)
{
    JsonLimits most = {(uint32_t)limits->json_depth, limits->json_values, UINT64_MAX};
    Json json = json_read(body, &most);
    Buffer scratch = {0};
    Slice key;
    bool good = json_object(&json);
    while (good && json_member(&json, &scratch, &key))
        good = slice_is(key, "model_name") ? json_string_to(&json, name)
            : slice_is(key, "url")         ? json_string_to(&json, url)
                                           : json_skip(&json);
    buffer_free(&scratch);
    if (json_failed(&json) || (good && !json_end(&json)))
        return json_problem(&json, "failed to parse the request JSON buffer", problem);
    if (!good || name->size == 0 || url->size == 0)
        return problem_set(problem, PROBLEM_INVALID, "the request's body is not {\"model_name\": ..., \"url\": ...}");
    return !name->failed && !url->failed ? true : problem_no_memory(problem);
}

static bool run_load(Call *call, Problem *problem)
{
    const HttpCall *state = http_call(call);
    HttpService *service = service_of(call);
    Buffer name = {0}, url = {0};
    bool done =
        read_load_request(state->job.body, connection_endpoint(state->connection)->limits, &name, &url, problem) &&
        check_url(service->settings.sagemaker_folder, buffer_slice(&url), problem) &&
        reserve(service->sagemaker_models, buffer_slice(&name), buffer_slice(&url), problem);
    if (done) {
        done = load_from(service->settings.server, buffer_string(&url), buffer_slice(&name), problem);
        if (done)
            set_loaded(service->sagemaker_models, buffer_slice(&name));
        else
            free(take_out(service->sagemaker_models, buffer_slice(&name), false));
    }
    buffer_free(&name);
    buffer_free(&url);
    return done;
}

/* ── the others ───────────────────────────────────────────────────────────────────────────────────── */

static bool run_unload(Call *call, Problem *problem)
{
    const HttpService *service = service_of(call);
    Slice name = http_call(call)->job.name;
    Server *server = service->settings.server;
    char *url = take_out(service->sagemaker_models, name, true);
    if (url == NULL)
        return not_loaded_problem(problem);
    bool done = repository_unload(server, SLICE(""), name, true, problem);
    api_ignore(triton.ServerUnregisterModelRepository(server->server, url), "unregistering a model repository");
    free(url);
    return done;
}

static void put_model(Buffer *text, Slice name, const Model *model)
{
    buffer_put_string(text, "{\"modelName\":");
    json_put_sanitized(text, name);
    buffer_put_string(text, ",\"modelUrl\":");
    json_put_sanitized(text, slice_of(model->url));
    buffer_put_char(text, '}');
}

static bool put_all(Call *call, Problem *problem)
{
    SagemakerModels *hosted = service_of(call)->sagemaker_models;
    Buffer *text = &call->reply;
    size_t at = 0, count = 0;
    Slice name;
    void *model;
    buffer_put_string(text, "{\"models\":[");
    pthread_mutex_lock(&hosted->lock);
    while (name_table_next(&hosted->models, &at, &name, &model)) {
        if (!((Model *)model)->is_loaded)
            continue;
        if (count++)
            buffer_put_char(text, ',');
        put_model(text, name, model);
    }
    pthread_mutex_unlock(&hosted->lock);
    buffer_put_string(text, "]}");
    return !text->failed || problem_no_memory(problem);
}

static bool put_one(Call *call, Problem *problem)
{
    SagemakerModels *hosted = service_of(call)->sagemaker_models;
    Slice name = http_call(call)->job.name;
    pthread_mutex_lock(&hosted->lock);
    const Model *model = name_table_get(&hosted->models, name);
    bool there = model && model->is_loaded;
    if (there)
        put_model(&call->reply, name, model);
    pthread_mutex_unlock(&hosted->lock);
    return there || not_loaded_problem(problem);
}

static bool load(HttpRequest *request, Problem *problem)
{
    return http_job(request, run_load, TYPE_JSON, problem);
}

static bool unload(HttpRequest *request, Problem *problem)
{
    return http_job(request, run_unload, TYPE_JSON, problem);
}

static bool list(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_all, TYPE_JSON, problem);
}

static bool show(HttpRequest *request, Problem *problem)
{
    return http_job(request, put_one, TYPE_JSON, problem);
}

static bool invoke(HttpRequest *request, Problem *problem)
{
    SagemakerModels *hosted = request->service->sagemaker_models;
    pthread_mutex_lock(&hosted->lock);
    const Model *model = name_table_get(&hosted->models, request->name);
    bool there = model && model->is_loaded;
    pthread_mutex_unlock(&hosted->lock);
    return there ? http_handle_infer(request, problem) : not_loaded_problem(problem);
}

bool sagemaker_mme_route(const Target *target, HttpRoute *route)
{
    const Slice *segments = target->segments;
    if (target->count == 0 || target->count > 3 || !slice_is(segments[0], "models"))
        return false;
    if (target->count > 1 && segments[1].size == 0)
        return false;
    /* Not restrictable, because SageMaker sends no token. */
    *route = (HttpRoute){.api = API_OTHER, .name = SLICE(""), .version = SLICE(""), .repository = SLICE("")};
    if (target->count > 1)
        route->name = segments[1];
    if (target->count == 1) {
        route->get = list;
        route->post = load;
    } else if (target->count == 2) {
        route->get = show;
        route->delete = unload;
    } else {
        route->post = invoke;
    }
    return target->count < 3 || slice_is(segments[2], "invoke");
}
