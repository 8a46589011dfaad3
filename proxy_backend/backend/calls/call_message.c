#include "calls/call_message.h"

#include "wire/protocol.h"

/* Skip a value and return a reader positioned at it. */
static Reader skip_and_keep(Reader *reader)
{
    Reader value = *reader;
    msgpack_skip(reader, 0);
    value.end = reader->next;
    return value;
}

void call_message_get_input(Reader *reader, Input *input)
{
    uint32_t fields = msgpack_get_array(reader);
    input->name = msgpack_get_text(reader);
    input->datatype = msgpack_get_text(reader);
    input->dims = msgpack_get_array(reader);
    for (uint32_t i = 0; i < input->dims; i++) {
        int64_t length = msgpack_get_int(reader);
        if (i < MAX_DIMS)
            input->shape[i] = length;
    }
    input->memory = msgpack_get_int(reader);
    input->offset = msgpack_get_int(reader);
    input->size = msgpack_get_int(reader);
    msgpack_skip_rest(reader, fields, TENSOR_REF_SIZE);
}

Links chain_links(const CallMessage *call)
{
    Links links = {.reader = call->chain};
    links.left = msgpack_get_array(&links.reader);
    return links;
}

bool chain_next(Links *links)
{
    if (links->left == 0 || links->reader.malformed)
        return false;
    uint32_t fields = msgpack_get_array(&links->reader);
    links->left--;
    links->model = msgpack_get_text(&links->reader);
    links->worker = msgpack_get_text(&links->reader);
    msgpack_skip_rest(&links->reader, fields, LINK_SIZE);
    return !links->reader.malformed;
}

/* Returns whether all skipped values can be read. They cannot if a number is too large for its field. */
static bool is_readable(const CallMessage *call)
{
    Reader inputs = call->inputs, outputs = call->outputs;
    for (uint32_t left = msgpack_get_array(&inputs); left; left--) {
        Input input;
        call_message_get_input(&inputs, &input);
    }
    for (uint32_t left = msgpack_get_array(&outputs); left; left--)
        msgpack_get_text(&outputs);
    Links links = chain_links(call);
    while (chain_next(&links))
        ;
    return !inputs.malformed && !outputs.malformed && !links.reader.malformed;
}

bool call_message_read(Reader *reader, uint32_t fields, CallMessage *call)
{
    *call = (CallMessage){.id = msgpack_get_int(reader)};
    call->model = msgpack_get_text(reader);
    call->version = msgpack_get_int(reader);
    call->inputs = skip_and_keep(reader);
    call->outputs = skip_and_keep(reader);
    call->parameters = msgpack_get_text(reader);
    call->request_id = msgpack_get_text(reader);
    if (msgpack_kind(reader) == MSGPACK_TEXT)
        call->correlation = msgpack_get_text(reader);
    else
        call->correlation_number = msgpack_get_uint(reader);
    call->flags = msgpack_get_uint(reader);
    call->timeout_us = msgpack_get_uint(reader);
    call->stream = msgpack_get_bool(reader);
    call->chain = skip_and_keep(reader);
    msgpack_skip_rest(reader, fields, CALL_SIZE - 1); /* The message's name has already been read. */
    return fields >= CALL_LEAST - 1 && !reader->malformed && is_readable(call);
}
