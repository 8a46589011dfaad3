#include "grpc/infer.h"
#include "protobuf/messages.h"

#include <stdio.h>
#include <stdlib.h>

static void put_text(Buffer *text, uint32_t field, const char *value)
{
    if (value && *value)
        proto_put_bytes(text, field, slice_of(value));
}

static void put_parameter(Buffer *text, uint32_t field, const ResponseParameter *parameter)
{
    size_t entry = proto_begin(text, field);
    proto_put_bytes(text, 1, slice_of(parameter->name));
    size_t value = proto_begin(text, 2);
    if (parameter->type == PARAMETER_STRING)
        proto_put_bytes(text, INFER_PARAMETER_string_param, slice_of(parameter->string));
    else if (parameter->type == PARAMETER_INT)
        proto_put_number(text, INFER_PARAMETER_int64_param, (uint64_t)parameter->integer);
    else if (parameter->type == PARAMETER_BOOL)
        proto_put_number(text, INFER_PARAMETER_bool_param, parameter->boolean);
    else
        proto_put_double(text, INFER_PARAMETER_double_param, parameter->number);
    proto_end(text, value);
    proto_end(text, entry);
}

static void put_region(Buffer *text, const ResponseOutput *output)
{
    enum { FIELD = MODEL_INFER_RESPONSE_INFER_OUTPUT_TENSOR_parameters };
    ResponseParameter offset = {
        .name = "shared_memory_offset", .type = PARAMETER_INT, .integer = (int64_t)output->requested->offset};
    ResponseParameter size = {
        .name = "shared_memory_byte_size", .type = PARAMETER_INT, .integer = (int64_t)output->size};
    put_parameter(text, FIELD, &size);
    put_parameter(text, FIELD, &offset);
}

static void put_output(Buffer *text, const ResponseOutput *output)
{
    size_t begun = proto_begin(text, MODEL_INFER_RESPONSE_outputs);
    put_text(text, MODEL_INFER_RESPONSE_INFER_OUTPUT_TENSOR_name, output->name);
    put_text(text, MODEL_INFER_RESPONSE_INFER_OUTPUT_TENSOR_datatype, datatype_name(output->datatype));
    proto_put_packed(text, MODEL_INFER_RESPONSE_INFER_OUTPUT_TENSOR_shape, output->shape, output->dims);
    if (output->in_region)
        put_region(text, output);
    proto_end(text, begun);
}

static void put_version(Buffer *text, int64_t version)
{
    char digits[24];
    int size = snprintf(digits, sizeof digits, "%lld", (long long)version);
    proto_put_bytes(text, MODEL_INFER_RESPONSE_model_version, (Slice){digits, (size_t)size});
}

static void put_response(Buffer *text, const CallResponse *response, InferPart part)
{
    ResponseParameter is_final = {
        .name = "triton_final_response", .type = PARAMETER_BOOL, .boolean = part == INFER_ENDS};
    put_text(text, MODEL_INFER_RESPONSE_model_name, response->model);
    if (!response->empty)
        put_version(text, response->version);
    put_text(text, MODEL_INFER_RESPONSE_id, response->id);
    for (size_t i = 0; i < response->parameter_count; i++)
        put_parameter(text, MODEL_INFER_RESPONSE_parameters, &response->parameters[i]);
    if (part != INFER_UNARY)
        put_parameter(text, MODEL_INFER_RESPONSE_parameters, &is_final);
    for (size_t i = 0; i < response->output_count; i++)
        put_output(text, &response->outputs[i]);
}

/* Returns the size of an output in raw_output_contents. An output in shared memory is empty there, so that indexes
 * match.
 */
static size_t raw_size(const ResponseOutput *output)
{
    return output->in_region ? 0 : output->size;
}

static void sent(Outgoing *message)
{
    InferReply *reply = (InferReply *)message; /* The message is the reply's first member. */
    CallResponse *response = reply->response;
    if (reply->parts != reply->few)
        free(reply->parts);
    if (reply->is_calls) {
        response->call->reply = reply->head;
    } else {
        buffer_free(&reply->head);
        free(reply);
    }
    if (response)
        call_response_release(response);
}

/* Arrange the parts of the message: the first `first` bytes of `text`, then each output's bytes, followed by the part
 * of `text` that comes before the next output.
 */
static bool lay_out(InferReply *reply, size_t first)
{
    const CallResponse *response = reply->response;
    size_t count = 1 + 2 * (response ? response->output_count : 0), at = first;
    reply->parts = count <= INFER_FEW_PARTS ? reply->few : calloc(count, sizeof *reply->parts);
    if (reply->parts == NULL)
        return false;
    reply->message.parts = reply->parts;
    reply->message.sent = sent;
    reply->parts[0] = (struct iovec){reply->head.data, first};
    reply->message.count = 1;
    for (size_t i = 0; response && i < response->output_count; i++) {
        const ResponseOutput *output = &response->outputs[i];
        size_t head = proto_bytes_size(MODEL_INFER_RESPONSE_raw_output_contents, raw_size(output)) - raw_size(output);
        reply->parts[reply->message.count++] = (struct iovec){reply->head.data + at, head};
        at += head;
        if (raw_size(output))
            reply->parts[reply->message.count++] = (struct iovec){(void *)(uintptr_t)output->bytes, output->size};
    }
    return true;
}

static size_t raw_bytes(const CallResponse *response)
{
    size_t size = 0;
    for (size_t i = 0; i < response->output_count; i++)
        size += proto_bytes_size(MODEL_INFER_RESPONSE_raw_output_contents, raw_size(&response->outputs[i]));
    return size;
}

static void put_raw_heads(Buffer *text, const CallResponse *response)
{
    for (size_t i = 0; i < response->output_count; i++)
        proto_put_bytes_head(text, MODEL_INFER_RESPONSE_raw_output_contents, raw_size(&response->outputs[i]));
}

static InferReply *finish_reply(InferReply *reply, size_t first)
{
    reply->message.sent = sent;
    if (!reply->head.failed && lay_out(reply, first))
        return reply;
    reply->parts = reply->few;
    sent(&reply->message);
    return NULL;
}

static InferReply *begin(CallResponse *response)
{
    InferReply *reply = calloc(1, sizeof *reply);
    if (reply == NULL && response)
        call_response_release(response);
    else if (reply)
        reply->response = response;
    return reply;
}

InferReply *infer_reply_unary(CallResponse *response, InferReply *room)
{
    *room = (InferReply){.response = response, .is_calls = true, .head = response->call->reply};
    buffer_clear(&room->head);
    put_response(&room->head, response, INFER_UNARY);
    size_t first = room->head.size;
    put_raw_heads(&room->head, response);
    return finish_reply(room, first);
}

InferReply *infer_reply_part(CallResponse *response, InferPart part)
{
    InferReply *reply = begin(response);
    Buffer inner = {0};
    if (reply == NULL)
        return NULL;
    put_response(&inner, response, part);
    proto_put_bytes_head(&reply->head, MODEL_STREAM_INFER_RESPONSE_infer_response, inner.size + raw_bytes(response));
    buffer_put_slice(&reply->head, buffer_slice(&inner));
    reply->head.failed |= inner.failed;
    buffer_free(&inner);
    size_t first = reply->head.size;
    put_raw_heads(&reply->head, response);
    return finish_reply(reply, first);
}

InferReply *infer_reply_error(CallResponse *response, const char *text, Slice id)
{
    InferReply *reply = begin(NULL);
    ResponseParameter is_final = {
        .name = "triton_final_response", .type = PARAMETER_BOOL, .boolean = response && response->final};
    if (reply) {
        proto_put_bytes(&reply->head, MODEL_STREAM_INFER_RESPONSE_error_message, slice_of(text));
        size_t message_size = proto_begin(&reply->head, MODEL_STREAM_INFER_RESPONSE_infer_response);
        if (response)
            put_text(&reply->head, MODEL_INFER_RESPONSE_model_name, response->model);
        if (id.size)
            proto_put_bytes(&reply->head, MODEL_INFER_RESPONSE_id, id);
        if (response && response->problem.kind != PROBLEM_NONE)
            put_parameter(&reply->head, MODEL_INFER_RESPONSE_parameters, &is_final);
        proto_end(&reply->head, message_size);
        reply = finish_reply(reply, reply->head.size);
    }
    if (response)
        call_response_release(response);
    return reply;
}
