/* Information about the server and its models: the JSON of the core, appended to a buffer. All but server_information
 * and metrics_text may block while models are being loaded, so run them as jobs.
 */
#ifndef PYTRITON_FRONTEND_ADMIN_INFORMATION_H
#define PYTRITON_FRONTEND_ADMIN_INFORMATION_H
#include "common/buffer.h"
#include "core/api.h"
#include "core/server.h"

/* Append {"name", "version", "extensions"}. */
bool server_information(Server *server, Buffer *json, Problem *problem);
/* Append {"name", "versions", "platform", "inputs", "outputs"}. */
bool model_information(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);
bool model_configuration(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);
/* Append {"model_stats": [...]}. An empty `model` means all models. */
bool model_statistics(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);
/* Append the core's metrics in Prometheus's text format. */
bool metrics_text(Server *server, Buffer *text, Problem *problem);

/* Append the JSON of a message, and delete the message. */
bool message_put_json(TRITONSERVER_Message *message, Buffer *json, Problem *problem);

#endif
