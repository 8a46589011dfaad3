#include "admin/information.h"

bool message_put_json(TRITONSERVER_Message *message, Buffer *json, Problem *problem)
{
    const char *start = NULL;
    size_t size = 0;
    bool made = api_succeeded(triton.MessageSerializeToJson(message, &start, &size), problem);
    if (made)
        buffer_put(json, start, size);
    api_ignore(triton.MessageDelete(message), "deleting a message");
    return made && json->failed ? problem_no_memory(problem) : made;
}

bool server_information(Server *server, Buffer *json, Problem *problem)
{
    TRITONSERVER_Message *message = NULL;
    return api_succeeded(triton.ServerMetadata(server->server, &message), problem) &&
        message_put_json(message, json, problem);
}

/* Handle the core's answer about a model. One that the core lacks may be loaded on request. `left` is the value of
 * pending_models_left before the core was asked.
 */
static bool check_model_answer(Server *server, Slice model, size_t left, TRITONSERVER_Error *error, Problem *problem)
{
    if (api_succeeded(error, problem))
        return true;
    pending_models_request(server->pending_models, model, left, problem);
    return false;
}

/* Asks the core about a version of a model. */
typedef TRITONSERVER_Error *Question(
    TRITONSERVER_Server *core, const char *model, int64_t version, TRITONSERVER_Message **answer);

static bool ask_about_model(
    Server *server, Slice model, Slice version, Question *question, Buffer *json, Problem *problem)
{
    ServerName name;
    int64_t number;
    TRITONSERVER_Message *message = NULL;
    size_t left = pending_models_left(server->pending_models);
    return server_name(model, "model name", &name, problem) && server_version(version, &number, problem) &&
        check_model_answer(server, model, left, question(server->server, name.text, number, &message), problem) &&
        message_put_json(message, json, problem);
}

bool model_information(Server *server, Slice model, Slice version, Buffer *json, Problem *problem)
{
    return ask_about_model(server, model, version, triton.ServerModelMetadata, json, problem);
}

static TRITONSERVER_Error *ask_configuration(
    TRITONSERVER_Server *core, const char *model, int64_t version, TRITONSERVER_Message **answer)
{
    return triton.ServerModelConfig(core, model, version, 1, answer);
}

bool model_configuration(Server *server, Slice model, Slice version, Buffer *json, Problem *problem)
{
    return ask_about_model(server, model, version, ask_configuration, json, problem);
}

bool model_statistics(Server *server, Slice model, Slice version, Buffer *json, Problem *problem)
{
    return ask_about_model(server, model, version, triton.ServerModelStatistics, json, problem);
}

bool metrics_text(Server *server, Buffer *text, Problem *problem)
{
    TRITONSERVER_Metrics *metrics = NULL;
    const char *start = NULL;
    size_t size = 0;
    if (!api_succeeded(triton.ServerMetrics(server->server, &metrics), problem))
        return false;
    bool made = api_succeeded(triton.MetricsFormatted(metrics, METRICS_PROMETHEUS, &start, &size), problem);
    if (made)
        buffer_put(text, start, size);
    api_ignore(triton.MetricsDelete(metrics), "deleting metrics");
    return made && text->failed ? problem_no_memory(problem) : made;
}
