/* The core's JSON messages. */
#ifndef PYTRITON_FRONT_MESSAGE_H
#define PYTRITON_FRONT_MESSAGE_H

#include "base/text.h"
#include "core/api.h"

/* Append a message's JSON, and delete the message. */
bool message_take(TRITONSERVER_Message *message, Text *json, Problem *problem);

#endif
