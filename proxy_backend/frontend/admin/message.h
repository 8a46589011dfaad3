/* The core's JSON messages. */
#ifndef PYTRITON_FRONTEND_ADMIN_MESSAGE_H
#define PYTRITON_FRONTEND_ADMIN_MESSAGE_H

#include "base/text.h"
#include "core/api.h"

/* Append a message's JSON, and delete the message. */
bool message_put_json(TRITONSERVER_Message *message, Text *json, Problem *problem);

#endif
