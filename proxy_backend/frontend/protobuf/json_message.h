/* Converts the core's JSON to protobuf messages, using their tables (https://protobuf.dev/programming-guides/json/,
 * but with the original names of the fields).
 */
#ifndef PYTRITON_FRONTEND_PROTOBUF_JSON_MESSAGE_H
#define PYTRITON_FRONTEND_PROTOBUF_JSON_MESSAGE_H

#include "protobuf/protobuf.h"
#include "json/reader.h"

/* Begin to read JSON of the core, without the limits for clients. */
Json json_of_core(Slice text);
/* Append the fields of the next object to a message. Unknown members are skipped. */
bool message_from_json(Json *json, const ProtoMessage *message, Buffer *to, Problem *problem);

#endif
