/* The core's server: its start, its readiness, its end. */
#ifndef PYTRITON_FRONT_SERVER_H
#define PYTRITON_FRONT_SERVER_H

#include "core/awaited.h"
#include "core/options.h"

#include <pthread.h>

typedef struct {
    TRITONSERVER_Server *server;
    OptionsKept options;
    pthread_mutex_t lock; /* guards those options, which admin/ changes */
    TRITONSERVER_ResponseAllocator *allocator; /* of calls/ */
    Awaited *awaited; /* whoever starts the server puts it here; NULL: no model comes when it is asked for */
    /* server.c's: */
    bool held, polls, ends;
    uint64_t changes; /* of its models; atomic */
    uint64_t looked; /* when somebody looked whether it is ready, in milliseconds, times 2; and 1 if it was. Atomic */
    pthread_t poller;
    pthread_cond_t ending;
} Server;

/* Load the core (once in a process) and start its server. It returns when the models of its start are loaded, or could
 * not be. NULL: a problem. */
Server *server_start(const char *library, const Option *options, size_t count, Problem *problem);
/* End: wait for requests under way, at most for the exit timeout, and unload all models. The server stays, to be asked. */
bool server_stop(Server *server, Problem *problem);
void server_free(Server *server);

/* Cheap enough for a loop, as is server_model_is_ready. */
bool server_is_live(Server *server);
bool server_is_ready(Server *server);
/* The same, a quarter of a second old at most: for many who ask again and again, where the core goes through all models each time. */
bool server_was_ready(Server *server);
/* Have it say that it is not ready, whatever the core says; or no more. Any thread. */
void server_hold(Server *server, bool held);
bool server_is_held(const Server *server);

/* Count a change of its models: before something is loaded or unloaded, and after it. Any thread. */
void server_count_change(Server *server);
uint64_t server_changes(const Server *server);

/* A version as clients write it: "": the model's policy chooses, -1. */
bool server_version(Slice text, int64_t *version, Problem *problem);
/* A model that is unknown, or that an instance says is not ready, is not ready, which is no problem: cores differ in that (2.51 has no error for an
 * unknown one, later ones have). False, with a problem: its name or version is wrong, or it will come (PROBLEM_AWAITED). */
bool server_model_is_ready(Server *server, Slice model, Slice version, bool *ready, Problem *problem);

/* A copy of a model's name on the stack, for the core. Folders have such names, so they are short. */
enum { SERVER_NAME = 1024 };
typedef struct {
    char text[SERVER_NAME + 1];
} ServerName;
/* False, with a problem: it is too long, no valid UTF-8, or has NUL in it. `what`: "model name". */
bool server_name(Slice name, const char *what, ServerName *copy, Problem *problem);

#endif
