/* The models in repositories: their index, load and unload. Run these as jobs. */
#ifndef PYTRITON_FRONTEND_ADMIN_REPOSITORY_H
#define PYTRITON_FRONTEND_ADMIN_REPOSITORY_H

#include "common/buffer.h"
#include "core/server.h"

/* [{"name", "version", "state", "reason"}, ...]. `repository`: "" only. */
bool repository_index(Server *server, Slice repository, bool ready, Buffer *json, Problem *problem);

/* A parameter of a load: "config" is JSON, "file:..." a file's content. */
typedef struct {
    Slice name;
    int type; /* PARAMETER_STRING, PARAMETER_BYTES; others are refused */
    Slice value;
} LoadParameter;
bool repository_load(
    Server *server, Slice repository, Slice model, const LoadParameter *parameters, size_t count, Problem *problem);
bool repository_unload(Server *server, Slice repository, Slice model, bool dependents, Problem *problem);

#endif
