/* Messages converted from the core's JSON using their tables (https://protobuf.dev/programming-guides/json/, with the
 * fields' original names).
 */
#ifndef PYTRITON_FRONTEND_PROTOBUF_JSON_MESSAGE_H
#define PYTRITON_FRONTEND_PROTOBUF_JSON_MESSAGE_H

#include "protobuf/protobuf.h"
#include "json/reader.h"

/* Begin to read JSON from the core: without the limits for clients. */
Json json_of_core(Slice text);
/* Append the next object as the fields of a message. Unknown members are skipped. */
bool message_from_json(Json *json, const ProtoMessage *message, Buffer *to, Problem *problem);

#endif
