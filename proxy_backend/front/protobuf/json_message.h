/* Messages made of the core's JSON, by their tables (https://protobuf.dev/programming-guides/json/, with the fields' original names). */
#ifndef PYTRITON_FRONT_PROTOBUF_JSON_MESSAGE_H
#define PYTRITON_FRONT_PROTOBUF_JSON_MESSAGE_H

#include "protobuf/protobuf.h"
#include "json/reader.h"

/* Begin to read what the core says: it is not bounded as what clients say is. */
Json json_of_core(Slice text);
/* Append the object that comes next as the fields of a message. Members that it does not have are passed over. */
bool message_from_json(Json *json, const ProtoMessage *message, Text *to, Problem *problem);

#endif
