#include "admin/trace_settings.h"

/* Check that the model exists: settings of nonexistent models would stay forever. */
static bool is_known(Server *server, Slice model, Problem *problem)
{
    ServerName name;
    uint32_t flags;
    Problem unknown = {0};
    if (model.size == 0)
        return true;
    if (!server_name(model, "model name", &name, problem))
        return false;
    bool known =
        api_succeeded(triton.ServerModelTransactionProperties(server->server, name.text, -1, &flags, NULL), &unknown);
    problem_clear(&unknown);
    return known ? true : problem_set(problem, PROBLEM_INVALID, "Request for unknown model : %s", name.text);
}

bool trace_settings_read(Tracing *tracing, Server *server, Slice model, Buffer *json, Problem *problem)
{
    return is_known(server, model, problem) && tracing_read(tracing, model, json, problem);
}

bool trace_settings_change(
    Tracing *tracing, Server *server, Slice model, const TraceChange *changes, size_t count, Problem *problem)
{
    return is_known(server, model, problem) && tracing_change(tracing, model, changes, count, problem);
}
