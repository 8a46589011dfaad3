#include "calls/call_message.h"

#include "wire/protocol.h"

/* Skip a value and return a reader for it. */
static Reader set_aside(Reader *reader)
{
    Reader value = *reader;
    skip(reader, 0);
    value.end = reader->next;
    return value;
}

void get_input(Reader *reader, Input *input)
{
    uint32_t fields = get_array(reader);
    input->name = get_text(reader);
    input->datatype = get_text(reader);
    input->dims = get_array(reader);
    for (uint32_t i = 0; i < input->dims; i++) {
        int64_t length = get_int(reader);
        if (i < MOST_DIMS)
            input->shape[i] = length;
    }
    input->memory = get_int(reader);
    input->offset = get_int(reader);
    input->size = get_int(reader);
    skip_rest(reader, fields, TENSOR_REF_SIZE);
}

Links chain_links(const CallMessage *call)
{
    Links links = {.reader = call->chain};
    links.left = get_array(&links.reader);
    return links;
}

bool chain_next(Links *links)
{
    if (links->left == 0 || links->reader.malformed)
        return false;
    uint32_t fields = get_array(&links->reader);
    links->left--;
    links->model = get_text(&links->reader);
    links->worker = get_text(&links->reader);
    skip_rest(&links->reader, fields, LINK_SIZE);
    return !links->reader.malformed;
}

/* Returns whether all skipped values can be read: a number may be too large for its field. */
static bool is_right(const CallMessage *call)
{
    Reader inputs = call->inputs, outputs = call->outputs;
    for (uint32_t left = get_array(&inputs); left; left--) {
        Input input;
        get_input(&inputs, &input);
    }
    for (uint32_t left = get_array(&outputs); left; left--)
        get_text(&outputs);
    Links links = chain_links(call);
    while (chain_next(&links))
        ;
    return !inputs.malformed && !outputs.malformed && !links.reader.malformed;
}

bool call_read(Reader *reader, uint32_t fields, CallMessage *call)
{
    *call = (CallMessage){.id = get_int(reader)};
    call->model = get_text(reader);
    call->version = get_int(reader);
    call->inputs = set_aside(reader);
    call->outputs = set_aside(reader);
    call->parameters = get_text(reader);
    call->request_id = get_text(reader);
    if (kind_of(reader) == KIND_TEXT)
        call->correlation = get_text(reader);
    else
        call->correlation_number = get_uint(reader);
    call->flags = get_uint(reader);
    call->timeout_us = get_uint(reader);
    call->stream = get_bool(reader);
    call->chain = set_aside(reader);
    skip_rest(reader, fields, CALL_SIZE - 1); /* its name has already been read */
    return fields >= CALL_LEAST - 1 && !reader->malformed && is_right(call);
}
