#include "admin/repository.h"

#include "admin/information.h"
#include "common/utf8.h"

#include <stdlib.h>

/* Maximum number of parameters of a load request. */
enum { PARAMETERS = 1024 };

static bool is_any(Slice repository, Problem *problem)
{
    return repository.size == 0
        ? true
        : problem_set(problem, PROBLEM_UNSUPPORTED, "'repository_name' specification is not supported");
}

bool repository_index(Server *server, Slice repository, bool ready, Buffer *json, Problem *problem)
{
    TRITONSERVER_Message *message = NULL;
    return is_any(repository, problem) &&
        api_succeeded(triton.ServerModelIndex(server->server, ready ? INDEX_READY : 0, &message), problem) &&
        message_put_json(message, json, problem);
}

static TRITONSERVER_Parameter *make_parameter(const LoadParameter *parameter, Problem *problem)
{
    ServerName name;
    if (!server_name(parameter->name, "name of a parameter", &name, problem))
        return NULL;
    bool is_file = slice_starts(parameter->name, "file:"), is_config = slice_is(parameter->name, "config");
    int wanted = is_file ? PARAMETER_BYTES : PARAMETER_STRING;
    if (!is_file && !is_config) {
        problem_set(problem, PROBLEM_INVALID, "unrecognized load parameter '%s'.", name.text);
        return NULL;
    }
    if (parameter->type != wanted) {
        problem_set(problem, PROBLEM_INVALID, "invalid value type for load parameter '%s', expected %s.", name.text,
            is_file ? "bytes_param" : "string_param");
        return NULL;
    }
    TRITONSERVER_Parameter *made = NULL;
    if (parameter->type == PARAMETER_BYTES) {
        made = triton.ParameterBytesNew(name.text, parameter->value.start, parameter->value.size);
    } else {
        char *value = slice_copy(parameter->value);
        if (value && memchr(value, '\0', parameter->value.size) == NULL)
            made = triton.ParameterNew(name.text, PARAMETER_STRING, value);
        free(value);
    }
    if (made == NULL)
        problem_set(
            problem, PROBLEM_INVALID, "parameter '%s' cannot be passed to the core: it may contain a NUL", name.text);
    return made;
}

bool repository_load(
    Server *server, Slice repository, Slice model, const LoadParameter *parameters, size_t count, Problem *problem)
{
    ServerName name;
    if (!is_any(repository, problem) || !server_name(model, "model name", &name, problem))
        return false;
    if (count > PARAMETERS)
        return problem_set(problem, PROBLEM_TOO_LARGE, "at most %d parameters are allowed", PARAMETERS);
    const TRITONSERVER_Parameter **made = calloc(count + 1, sizeof *made);
    if (made == NULL)
        return problem_no_memory(problem);
    size_t so_far = 0;
    while (so_far < count && (made[so_far] = make_parameter(&parameters[so_far], problem)) != NULL)
        so_far++;
    bool loaded = so_far == count;
    server_count_change(server);
    if (loaded)
        loaded = api_succeeded(count ? triton.ServerLoadModelWithParameters(server->server, name.text, made, count)
                                     : triton.ServerLoadModel(server->server, name.text),
            problem);
    server_count_change(server);
    for (size_t i = 0; i < so_far; i++)
        triton.ParameterDelete((TRITONSERVER_Parameter *)(uintptr_t)made[i]);
    free(made);
    if (loaded)
        pending_models_settle(server->pending_models, model);
    return loaded;
}

bool repository_unload(Server *server, Slice repository, Slice model, bool dependents, Problem *problem)
{
    ServerName name;
    if (!is_any(repository, problem) || !server_name(model, "model name", &name, problem))
        return false;
    server_count_change(server);
    bool unloaded = api_succeeded(dependents ? triton.ServerUnloadModelAndDependents(server->server, name.text)
                                             : triton.ServerUnloadModel(server->server, name.text),
        problem);
    server_count_change(server);
    return unloaded;
}
