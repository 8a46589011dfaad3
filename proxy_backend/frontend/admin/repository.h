/* The index of models in the repositories, loading and unloading. Run these functions as jobs. */
#ifndef PYTRITON_FRONTEND_ADMIN_REPOSITORY_H
#define PYTRITON_FRONTEND_ADMIN_REPOSITORY_H

#include "common/buffer.h"
#include "core/server.h"

/* Append [{"name", "version", "state", "reason"}, ...]. Only an empty `repository` is supported. */
bool repository_index(Server *server, Slice repository, bool ready, Buffer *json, Problem *problem);

/* A parameter of a load request: "config" with JSON, or "file:..." with the contents of a file. */
typedef struct {
    Slice name;
    int type; /* PARAMETER_STRING or PARAMETER_BYTES; others are refused */
    Slice value;
} LoadParameter;
bool repository_load(
    Server *server, Slice repository, Slice model, const LoadParameter *parameters, size_t count, Problem *problem);
bool repository_unload(Server *server, Slice repository, Slice model, bool dependents, Problem *problem);

#endif
