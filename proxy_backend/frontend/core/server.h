/* The core's server: start, readiness, stop. */
#ifndef PYTRITON_FRONTEND_CORE_SERVER_H
#define PYTRITON_FRONTEND_CORE_SERVER_H

#include "core/pending_models.h"
#include "core/options.h"

#include <pthread.h>

typedef struct {
    TRITONSERVER_Server *server;
    ParsedOptions options;
    pthread_mutex_t lock; /* guards those options, which admin/ changes */
    TRITONSERVER_ResponseAllocator *allocator; /* of calls/ */
    PendingModels *pending_models; /* set by the code that starts the server; NULL: no models are loaded on request */
    /* server.c's: */
    bool forced_unready, polls, ends;
    uint64_t changes; /* number of changes of its models; atomic */
    uint64_t
        readiness_sample; /* time of the last readiness check in milliseconds, times 2, plus 1 if it was ready. Atomic */
    pthread_t poller;
    pthread_cond_t ending;
} Server;

/* Load the core (once per process) and start its server. Returns when its initial models have been loaded, or have
 * failed. NULL: a problem.
 */
Server *server_start(const char *library, const Option *options, size_t count, Problem *problem);
/* Stop: wait for requests in flight, at most for the exit timeout, and unload all models. The server can still be
 * queried.
 */
bool server_stop(Server *server, Problem *problem);
void server_free(Server *server);

/* Fast enough for a loop, like server_model_is_ready. */
bool server_is_live(Server *server);
bool server_is_ready(Server *server);
/* Returns a result at most a quarter of a second old: for frequent probes, since the core checks all models each
 * time.
 */
bool server_was_recently_ready(Server *server);
/* Report not ready, whatever the core's state is; or stop doing so. Any thread. */
void server_force_unready(Server *server, bool forced_unready);
bool server_is_forced_unready(const Server *server);

/* Count a change of its models: before a load or unload, and after it. Any thread. */
void server_count_change(Server *server);
uint64_t server_changes(const Server *server);

/* Parse a version as clients write it. "": the model's policy selects, -1. */
bool server_version(Slice text, int64_t *version, Problem *problem);
/* Returns whether a model is ready. An unknown model, or one that an instance reports as not ready, is not ready,
 * which is not a problem: cores differ in that (2.51 has no error for an unknown one, later ones have). Returns false
 * with a problem if its name or version is invalid, or it will be loaded (PROBLEM_MODEL_PENDING).
 */
bool server_model_is_ready(Server *server, Slice model, Slice version, bool *ready, Problem *problem);

/* A copy of a model's name on the stack, for the core. Names are also folder names, so they are short. */
enum { SERVER_NAME = 1024 };
typedef struct {
    char text[SERVER_NAME + 1];
} ServerName;
/* Returns false with a problem if it is too long, not UTF-8, or contains NUL. `what`: "model name". */
bool server_name(Slice name, const char *what, ServerName *copy, Problem *problem);

#endif
