/* The response cache of models with response_cache { enable: true }: repeated requests are answered without the model.
 *
 * The core has a cache of its own, which is never switched on here: its key is the model, its version and the bytes of the inputs, in a hash that
 * anybody can compute. So it gives the answer for one parameter, shape, header or set of outputs to a request with another one, and that of a model's
 * former code after its replacement. Here the key is a keyed digest of all that a model can answer by:
 *
 *     model and version as asked for, parameters, forwarded headers (they are parameters), names of requested outputs,
 *     and of each input its name, data type, shape and bytes
 *
 * in the order of the request. Not in it are the request's id, priority and timeout. Any load or unload of any model empties the cache: a model may
 * call others. Never cached are requests of sequences, those with inputs or outputs in shared memory or a GPU, those that ask for classification, raw
 * requests, decoupled models, errors, and calls that do not come through calls/ (of models to other models, steps of ensembles).
 */
#ifndef PYTRITON_FRONT_RESPONSE_CACHE_H
#define PYTRITON_FRONT_RESPONSE_CACHE_H

#include "base/digest.h"
#include "calls/call.h"

typedef struct CachedResponse CachedResponse;

/* What is known of one request: all zero is one that is not cached. */
typedef struct {
    bool used;
    Digest digest;
    uint64_t value[2]; /* of the digest, after response_cache_find */
    uint64_t changes;  /* of the server's models, when the request began */
} CacheKey;

typedef struct {
    uint64_t hits, misses, entries, bytes;
} ResponseCacheCounts;

/* Of so many bytes. NULL: a problem. */
ResponseCache *response_cache_new(Server *server, uint64_t bytes, Problem *problem);
void response_cache_free(ResponseCache *cache);

/* All that follows is for any thread. */

/* Begin the key of a request to a model that is there; key->used is false unless its configuration asks for the cache. */
void response_cache_begin(ResponseCache *cache, const char *model, int64_t version, CacheKey *key);
/* End the key. NULL: there is no such response; else it is the caller's until cached_response_unref. */
CachedResponse *response_cache_find(ResponseCache *cache, CacheKey *key);
/* Keep a copy of an answer without an error, if it may have been given by the models that are there now. */
void response_cache_add(ResponseCache *cache, const CacheKey *key, const Answer *answer);
ResponseCacheCounts response_cache_counts(ResponseCache *cache);

/* The answer: model, version, outputs, whose `asked` is NULL, and parameters. */
const Answer *cached_response_answer(const CachedResponse *response);
void cached_response_unref(CachedResponse *response);

#endif
