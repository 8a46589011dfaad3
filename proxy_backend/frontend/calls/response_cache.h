/* The response cache of models with response_cache { enable: true }: repeated requests are answered without the model.
 *
 * The core has its own cache, which is never enabled here: its key is the model, its version and the bytes of the inputs,
 * in a hash that anybody can compute. So it may return the answer for other parameters, shapes, headers or outputs, and
 * that of a model's former code after its replacement. Here the key is a keyed digest of everything that may affect the
 * answer:
 *
 *     requested model and version, parameters, forwarded headers (they are parameters), names of requested outputs,
 *     and of each input its name, data type, shape and bytes
 *
 * in the order of the request, but not the request's id, priority and timeout. Any load or unload of any model empties
 * the cache, because a model may call others. Never cached are requests of sequences, those with inputs or outputs in
 * shared memory or a GPU, those that ask for classification, raw requests, decoupled models, errors, and calls that do
 * not come through calls/ (of models to other models, steps of ensembles).
 */
#ifndef PYTRITON_FRONTEND_CALLS_RESPONSE_CACHE_H
#define PYTRITON_FRONTEND_CALLS_RESPONSE_CACHE_H

#include "base/digest.h"
#include "calls/call.h"

typedef struct CachedResponse CachedResponse;

/* What the cache needs to know about a request. All zeros if it is not cached. */
typedef struct {
    bool used;
    Digest digest;
    uint64_t value[2]; /* the digest; set by response_cache_find */
    uint64_t changes;  /* the server's count of model changes when the request began */
} CacheKey;

typedef struct {
    uint64_t hits, misses, entries, bytes;
} ResponseCacheCounts;

/* Create a cache of `bytes` bytes. Returns NULL with a problem. */
ResponseCache *response_cache_new(Server *server, uint64_t bytes, Problem *problem);
void response_cache_free(ResponseCache *cache);

/* The functions below are thread-safe. */

/* Begin the key of a request to an existing model. `key->used` stays false unless the model's configuration enables
 * the cache.
 */
void response_cache_begin(ResponseCache *cache, const char *model, int64_t version, CacheKey *key);
/* Complete the key and look it up. Returns NULL, or the response, which the caller has to release with
 * cached_response_unref.
 */
CachedResponse *response_cache_find(ResponseCache *cache, CacheKey *key);
/* Add a copy of an answer without an error. It is ignored if models have changed since the request began. */
void response_cache_add(ResponseCache *cache, const CacheKey *key, const CallResponse *response);
ResponseCacheCounts response_cache_counts(ResponseCache *cache);

/* Returns the cached answer: model, version, outputs (whose `requested` is NULL) and parameters. */
const CallResponse *cached_response_get(const CachedResponse *cached);
void cached_response_unref(CachedResponse *cached);

#endif
