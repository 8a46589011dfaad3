/* The core's server: start, readiness, stop. */
#ifndef PYTRITON_FRONTEND_CORE_SERVER_H
#define PYTRITON_FRONTEND_CORE_SERVER_H

#include "core/pending_models.h"
#include "core/options.h"

#include <pthread.h>

typedef struct {
    TRITONSERVER_Server *server;
    ParsedOptions options;
    pthread_mutex_t lock; /* guards the options above, which admin/ changes */
    TRITONSERVER_ResponseAllocator *allocator; /* used by calls/ */
    PendingModels *pending_models; /* set by the code that starts the server; NULL if no models are loaded on request */
    /* Only server.c uses these. */
    bool forced_unready, polls, ends;
    uint64_t changes; /* counts changes of models; atomic */
    /* time of the last readiness check in milliseconds, times 2, plus 1 if it was ready; atomic */
    uint64_t readiness_sample;
    pthread_t poller;
    pthread_cond_t ending;
} Server;

/* Load the core, once per process, and start its server. Returns when the initial models have been loaded or have
 * failed. Returns NULL with a problem.
 */
Server *server_start(const char *library, const Option *options, size_t count, Problem *problem);
/* Stop the server: wait for requests in flight, up to the exit timeout, and unload all models. The server can still be
 * queried.
 */
bool server_stop(Server *server, Problem *problem);
void server_free(Server *server);

/* Like server_model_is_ready, fast enough for an event loop. */
bool server_is_live(Server *server);
bool server_is_ready(Server *server);
/* Returns whether the server was ready, at most a quarter of a second ago. For frequent probes, since the core checks
 * all models each time.
 */
bool server_was_recently_ready(Server *server);
/* Report the server as not ready, or stop doing so. Any thread. */
void server_force_unready(Server *server, bool forced_unready);

/* Count a change to the models. Called before and after loading or unloading one. Any thread. */
void server_count_change(Server *server);
uint64_t server_changes(const Server *server);

/* Parse a model version as clients write it. "" gives -1, for which the model's policy selects a version. */
bool server_version(Slice text, int64_t *version, Problem *problem);
/* Returns whether a model is ready. An unknown model is not ready, without a problem: the core (2.51) has no error for
 * it, later ones do. The same holds for a model whose instances report that they are not ready. Returns false with a
 * problem if the name or version is invalid, or the model will be loaded (PROBLEM_MODEL_PENDING).
 */
bool server_model_is_ready(Server *server, Slice model, Slice version, bool *ready, Problem *problem);

/* A copy of a model's name on the stack, terminated by NUL. Model names are also directory names, so they are short. */
enum { SERVER_NAME = 1024 };
typedef struct {
    char text[SERVER_NAME + 1];
} ServerName;
/* Copy a name. Returns false with a problem if it is too long, not UTF-8, or contains NUL. `what` is for the problem,
 * such as "model name".
 */
bool server_name(Slice name, const char *what, ServerName *copy, Problem *problem);

#endif
