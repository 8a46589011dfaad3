/* The response cache: for models with response_cache { enable: true }, repeated requests are answered without the model.
 *
 * The core's own cache is never enabled. Its key is a hash that anybody can compute, of the model, its version and the
 * bytes of the inputs. So it may return an answer for other parameters, shapes, headers or outputs, or one from before
 * the model was replaced. The key of this cache is a keyed digest of everything that can influence the answer, in the
 * order of the request:
 *
 *     requested model and version, parameters, forwarded headers (they are parameters), names of requested outputs,
 *     and for each input its name, data type, shape and bytes
 *
 * The request's id, priority and timeout are not part of the key. Since models can call each other, loading or
 * unloading any model empties the cache.
 *
 * These are never cached: requests of sequences, requests with inputs or outputs in shared memory or on a GPU, requests
 * for classification, raw requests, decoupled models, errors, calls between models, and steps of ensembles.
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
    uint64_t changes; /* the server's count of model changes when the request began */
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
