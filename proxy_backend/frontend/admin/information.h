/* Information about the server and its models: the core's own JSON, appended to a text. All but server_information
 * and metrics may take a while when models are being loaded: run them as jobs.
 */
#ifndef PYTRITON_FRONTEND_ADMIN_INFORMATION_H
#define PYTRITON_FRONTEND_ADMIN_INFORMATION_H
#include "common/buffer.h"
#include "core/api.h"
#include "core/server.h"

/* {"name", "version", "extensions"}. */
bool server_information(Server *server, Buffer *json, Problem *problem);
/* {"name", "versions", "platform", "inputs", "outputs"}. */
bool model_information(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);
bool model_configuration(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);
/* {"model_stats": [...]}; `model` "": all models. */
bool model_statistics(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);
/* The core's metrics in Prometheus's text format. */
bool metrics_text(Server *server, Buffer *text, Problem *problem);

/* Append a message's JSON, and delete the message. */
bool message_put_json(TRITONSERVER_Message *message, Buffer *json, Problem *problem);

#endif
