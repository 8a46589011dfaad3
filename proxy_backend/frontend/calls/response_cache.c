#include "calls/response_cache.h"

#include "base/name_table.h"
#include "json/reader.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/random.h>

enum { ALIGNED = 64, CONFIG_DEPTH = 64 };
enum { CONFIG_VERSION = 1 };

struct CachedResponse {
    CachedResponse *newer, *older; /* in order of use; guarded by the cache's lock */
    uint64_t value[2];
    size_t size; /* size of the whole allocation */
    unsigned refs; /* atomic */
    CallResponse response;
};

struct ResponseCache {
    Server *server;
    uint64_t limit, key[2];
    pthread_mutex_t lock; /* guards all fields below */
    uint64_t changes;     /* the server's count of model changes when the cache was last emptied */
    NameTable models;         /* by name and version: whether the configuration enables the cache */
    NameTable responses;      /* by digest */
    CachedResponse *newest, *oldest;
    ResponseCacheCounts counts;
};

/* The values of `models`. */
static char cache_enabled, cache_disabled;

ResponseCache *response_cache_new(Server *server, uint64_t bytes, Problem *problem)
{
    ResponseCache *cache = calloc(1, sizeof *cache);
    if (cache == NULL || pthread_mutex_init(&cache->lock, NULL) != 0) {
        free(cache);
        problem_no_memory(problem);
        return NULL;
    }
    cache->server = server;
    cache->limit = bytes;
    if (getrandom(cache->key, sizeof cache->key, 0) == (ssize_t)sizeof cache->key)
        return cache;
    response_cache_free(cache);
    problem_set(problem, PROBLEM_INTERNAL, "cannot get random bytes for the response cache's key");
    return NULL;
}

/* ── its responses, with the lock held ─────────────────────────────────────────────────────────── */

static Slice name_of(const uint64_t value[2])
{
    return (Slice){(const char *)value, 2 * sizeof *value};
}

static void unlink_cached(ResponseCache *cache, CachedResponse *cached)
{
    *(cached->newer ? &cached->newer->older : &cache->newest) = cached->older;
    *(cached->older ? &cached->older->newer : &cache->oldest) = cached->newer;
}

static void put_first(ResponseCache *cache, CachedResponse *cached)
{
    cached->newer = NULL;
    cached->older = cache->newest;
    *(cache->newest ? &cache->newest->newer : &cache->oldest) = cached;
    cache->newest = cached;
}

static void drop(ResponseCache *cache, CachedResponse *cached)
{
    name_table_remove(&cache->responses, name_of(cached->value));
    unlink_cached(cache, cached);
    cache->counts.bytes -= cached->size;
    cache->counts.entries--;
    cached_response_unref(cached);
}

/* Empty the cache if models have changed. Returns the count of changes. */
static uint64_t follow_changes(ResponseCache *cache)
{
    uint64_t changes = server_changes(cache->server);
    if (changes != cache->changes) {
        while (cache->oldest)
            drop(cache, cache->oldest);
        name_table_free(&cache->models);
        cache->changes = changes;
    }
    return changes;
}

void response_cache_free(ResponseCache *cache)
{
    if (cache == NULL)
        return;
    while (cache->oldest)
        drop(cache, cache->oldest);
    name_table_free(&cache->responses);
    name_table_free(&cache->models);
    pthread_mutex_destroy(&cache->lock);
    free(cache);
}

/* ── which models use it ───────────────────────────────────────────────────────────────────────── */

/* Returns whether a configuration has {"response_cache": {"enable": true}}. */
static bool config_enables_cache(Slice config)
{
    const JsonLimits limits = {.depth = CONFIG_DEPTH, .values = UINT32_MAX, .string_bytes = UINT32_MAX};
    Json json = json_read(config, &limits);
    Buffer scratch = {0};
    Slice key;
    bool enabled = false;
    if (json_object(&json))
        while (json_member(&json, &scratch, &key)) {
            if (!slice_is(key, "response_cache") || !json_object(&json)) {
                json_skip(&json);
                continue;
            }
            while (json_member(&json, &scratch, &key))
                if (!slice_is(key, "enable") || !json_bool(&json, &enabled))
                    json_skip(&json);
        }
    buffer_free(&scratch);
    return enabled && !json_failed(&json);
}

/* Read the model's configuration. Without a readable one, the model does not use the cache. */
static bool model_enables_cache(Server *server, const char *model, int64_t version)
{
    TRITONSERVER_Message *message = NULL;
    Problem problem = {0};
    const char *start;
    size_t size;
    bool enabled = false;
    if (api_succeeded(triton.ServerModelConfig(server->server, model, version, CONFIG_VERSION, &message), &problem)) {
        if (api_succeeded(triton.MessageSerializeToJson(message, &start, &size), &problem))
            enabled = config_enables_cache((Slice){start, size});
        api_ignore(triton.MessageDelete(message), "deleting a message");
    }
    problem_clear(&problem);
    return enabled;
}

/* The key in `models`: a version and a name. */
typedef struct {
    int64_t version;
    char name[SERVER_NAME];
} ModelName;

void response_cache_begin(ResponseCache *cache, const char *model, int64_t version, CacheKey *key)
{
    ModelName name;
    size_t size = strlen(model);
    key->used = false;
    if (size > sizeof name.name)
        return;
    name.version = version;
    memcpy(name.name, model, size);
    Slice known = {(const char *)&name, offsetof(ModelName, name) + size};
    pthread_mutex_lock(&cache->lock);
    key->changes = follow_changes(cache);
    const char *said = name_table_get(&cache->models, known);
    pthread_mutex_unlock(&cache->lock);
    if (said == NULL) {
        said = model_enables_cache(cache->server, model, version) ? &cache_enabled : &cache_disabled;
        pthread_mutex_lock(&cache->lock);
        /* Without memory for the entry, the configuration is read again next time. */
        if (cache->changes == key->changes)
            name_table_put(&cache->models, known, (void *)(uintptr_t)said);
        pthread_mutex_unlock(&cache->lock);
    }
    if (said != &cache_enabled)
        return;
    key->used = true;
    digest_begin(&key->digest, cache->key);
    digest_put(&key->digest, &version, sizeof version);
    digest_put_text(&key->digest, slice_of(model));
}

/* ── lookup and insertion ──────────────────────────────────────────────────────────────────────── */

CachedResponse *response_cache_find(ResponseCache *cache, CacheKey *key)
{
    digest_end(&key->digest, key->value);
    pthread_mutex_lock(&cache->lock);
    follow_changes(cache);
    CachedResponse *found = name_table_get(&cache->responses, name_of(key->value));
    if (found) {
        __atomic_add_fetch(&found->refs, 1, __ATOMIC_RELAXED);
        unlink_cached(cache, found);
        put_first(cache, found);
    }
    (*(found ? &cache->counts.hits : &cache->counts.misses))++;
    pthread_mutex_unlock(&cache->lock);
    return found;
}

/* Memory that is first measured and then allocated. */
typedef struct {
    char *start; /* NULL while measuring */
    size_t used;
} Piece;

static void *copy_piece(Piece *piece, const void *from, size_t size)
{
    void *taken = piece->start ? piece->start + piece->used : NULL;
    piece->used += (size + ALIGNED - 1) / ALIGNED * ALIGNED;
    if (taken && from && size)
        memcpy(taken, from, size);
    return taken;
}

static const char *take_string(Piece *piece, const char *string)
{
    return copy_piece(piece, string, strlen(string) + 1);
}

/* Copy an answer into the allocation, or only measure it. */
static void copy_response(Piece *piece, const CallResponse *response, CallResponse *copy)
{
    *copy = (CallResponse){.final = true, .version = response->version};
    copy->model = take_string(piece, response->model);
    copy->output_count = response->output_count;
    copy->parameter_count = response->parameter_count;
    ResponseOutput *outputs = copy_piece(piece, response->outputs, response->output_count * sizeof *outputs);
    for (size_t i = 0; i < response->output_count; i++) {
        const ResponseOutput *output = &response->outputs[i];
        ResponseOutput made = *output;
        made.name = take_string(piece, output->name);
        made.shape = copy_piece(piece, output->shape, output->dims * sizeof *output->shape);
        made.bytes = copy_piece(piece, output->bytes, output->size);
        made.requested = NULL;
        if (outputs)
            outputs[i] = made;
    }
    ResponseParameter *parameters =
        copy_piece(piece, response->parameters, response->parameter_count * sizeof *parameters);
    for (size_t i = 0; i < response->parameter_count; i++) {
        ResponseParameter made = response->parameters[i];
        made.name = take_string(piece, response->parameters[i].name);
        if (made.type == PARAMETER_STRING)
            made.string = take_string(piece, response->parameters[i].string);
        if (parameters)
            parameters[i] = made;
    }
    copy->outputs = outputs;
    copy->parameters = parameters;
}

/* Copy a response for the cache. Returns NULL if it exceeds the limit, or without memory. */
static CachedResponse *response_new(const CallResponse *response, uint64_t limit)
{
    CallResponse counted;
    Piece piece = {0};
    copy_piece(&piece, NULL, sizeof(CachedResponse));
    copy_response(&piece, response, &counted);
    void *memory;
    if (piece.used > limit || posix_memalign(&memory, ALIGNED, piece.used) != 0)
        return NULL;
    CachedResponse *cached = memory;
    *cached = (CachedResponse){.size = piece.used, .refs = 1};
    piece = (Piece){.start = memory};
    copy_piece(&piece, NULL, sizeof *cached);
    copy_response(&piece, response, &cached->response);
    return cached;
}

void response_cache_add(ResponseCache *cache, const CacheKey *key, const CallResponse *response)
{
    CachedResponse *made = response_new(response, cache->limit);
    if (made == NULL)
        return;
    memcpy(made->value, key->value, sizeof made->value);
    pthread_mutex_lock(&cache->lock);
    /* Discard the answer if models have changed since the request began. Of two simultaneous answers, keep the first.
     */
    bool stays =
        follow_changes(cache) == key->changes && name_table_get(&cache->responses, name_of(made->value)) == NULL;
    if (stays) {
        while (cache->oldest && cache->counts.bytes + made->size > cache->limit)
            drop(cache, cache->oldest);
        stays = name_table_put(&cache->responses, name_of(made->value), made);
    }
    if (stays) {
        put_first(cache, made);
        cache->counts.bytes += made->size;
        cache->counts.entries++;
    }
    pthread_mutex_unlock(&cache->lock);
    if (!stays)
        cached_response_unref(made);
}

ResponseCacheCounts response_cache_counts(ResponseCache *cache)
{
    pthread_mutex_lock(&cache->lock);
    follow_changes(cache);
    ResponseCacheCounts counts = cache->counts;
    pthread_mutex_unlock(&cache->lock);
    return counts;
}

const CallResponse *cached_response_get(const CachedResponse *cached)
{
    return &cached->response;
}

void cached_response_unref(CachedResponse *cached)
{
    if (cached && __atomic_sub_fetch(&cached->refs, 1, __ATOMIC_ACQ_REL) == 0)
        free(cached);
}
