/* See proxy_backend/python_proxy/calls.py. The worker's messages are checked here and by Triton. Inputs are copied
 * once, because the worker could write to its memory while tritonserver reads it.
 */
#define _GNU_SOURCE
#include "calls/call_request.h"

#include "base/available_memory.h"
#include "base/json.h"
#include "base/strings.h"
#include "common/utf8.h"
#include "calls/call_chain.h"
#include "triton/datatypes.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

static CallError no_error(void)
{
    return (CallError){NULL, ""};
}

static CallError invalid_error(char *text)
{
    return (CallError){text, "INVALID_ARG"};
}

CallError call_error_from(TRITONSERVER_Error *error)
{
    if (error == NULL)
        return no_error();
    TRITONSERVER_Error_Code code = TRITONSERVER_ErrorCode(error);
    return (CallError){.code = (unsigned)code < ERROR_CODE_COUNT ? error_code_names[code] : "UNKNOWN",
        .text = triton_error_text(error)};
}

static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Allocate memory for all inputs. */
static CallError allocate_inputs(const CallMessage *call, uint8_t **inputs)
{
    Reader reader = call->inputs;
    uint64_t total = ALIGNMENT;
    for (uint32_t left = msgpack_get_array(&reader); left; left--) {
        Input input;
        call_message_get_input(&reader, &input);
        if (input.size < 0 || input.dims > MAX_DIMS ||
            __builtin_add_overflow(total, aligned((uint64_t)input.size), &total))
            return invalid_error(
                strdup_printf("input %.*s has an impossible size", (int)input.name.size, input.name.start));
    }
    char *refusal = total < memory_check_interval ? NULL : memory_check(total);
    if (refusal) {
        CallError error = {
            strdup_printf("its %" PRIu64 " bytes of inputs cannot be passed on: %s", total, refusal), "UNAVAILABLE"};
        free(refusal);
        return error;
    }
    *inputs = total < SIZE_MAX / 2 ? aligned_alloc(ALIGNMENT, total) : NULL;
    return *inputs ? no_error()
                   : (CallError){strdup_printf("no memory for its %" PRIu64 " bytes of inputs", total), "UNAVAILABLE"};
}

/* Returns what is wrong with an input, whose bytes have been copied, or NULL. */
static const char *find_input_fault(const Input *input, int datatype, const uint8_t *bytes)
{
    uint64_t elements = 1, size = 0, element = TRITONSERVER_DataTypeByteSize(datatype);
    if (datatype <= TYPE_INVALID || datatype >= TYPE_COUNT)
        return "has an unknown datatype";
    for (uint32_t i = 0; i < input->dims; i++)
        if (input->shape[i] < 0 || __builtin_mul_overflow(elements, (uint64_t)input->shape[i], &elements))
            return "has an invalid shape";
    bool right = datatype == TYPE_BYTES
        ? strings_fill(bytes, (uint64_t)input->size, elements)
        : !__builtin_mul_overflow(elements, element, &size) && size == (uint64_t)input->size;
    return right ? NULL : "has a different size than its shape requires";
}

static CallError add_input(
    TRITONSERVER_InferenceRequest *request, CallConnection *connection, const Input *input, uint8_t *bytes)
{
    char *name = strdup_slice(input->name), *type = strdup_slice(input->datatype);
    int datatype = type ? TRITONSERVER_StringToDataType(type) : TYPE_INVALID;
    const uint8_t *theirs =
        input->size ? call_connection_memory(connection, input->memory, input->offset, input->size) : NULL;
    const char *wrong = name ? NULL : "has a name with a zero byte";
    if (wrong == NULL && input->size && theirs == NULL)
        wrong = "refers to memory that the worker has not announced";
    if (theirs && bytes)
        memcpy(bytes, theirs, (size_t)input->size);
    if (wrong == NULL)
        wrong = find_input_fault(input, datatype, bytes);
    CallError error = wrong ? invalid_error(strdup_printf("input %s %s", name ? name : "", wrong)) : no_error();
    if (error.text == NULL)
        error =
            call_error_from(TRITONSERVER_InferenceRequestAddInput(request, name, datatype, input->shape, input->dims));
    if (error.text == NULL)
        error = call_error_from(
            TRITONSERVER_InferenceRequestAppendInputData(request, name, bytes, (size_t)input->size, MEMORY_CPU, 0));
    free(name);
    free(type);
    return error;
}

static CallError add_inputs(
    TRITONSERVER_InferenceRequest *request, CallConnection *connection, const CallMessage *call, uint8_t **inputs)
{
    CallError error = allocate_inputs(call, inputs);
    uint8_t *next = *inputs;
    Reader reader = call->inputs;
    for (uint32_t left = msgpack_get_array(&reader); left && error.text == NULL; left--) {
        Input input;
        call_message_get_input(&reader, &input);
        error = add_input(request, connection, &input, next);
        next += aligned((uint64_t)input.size);
    }
    return error;
}

static CallError add_outputs(TRITONSERVER_InferenceRequest *request, const CallMessage *call)
{
    CallError error = no_error();
    Reader reader = call->outputs;
    for (uint32_t left = msgpack_get_array(&reader); left && error.text == NULL; left--) {
        char *name = strdup_slice(msgpack_get_text(&reader));
        error = name ? call_error_from(TRITONSERVER_InferenceRequestAddRequestedOutput(request, name))
                     : invalid_error(strdup_printf("an output's name has a zero byte"));
        free(name);
    }
    return error;
}

static TRITONSERVER_Error *set_parameter(
    TRITONSERVER_InferenceRequest *request, const char *key, Json value, const char *text)
{
    char number[32], *end;
    if (text)
        return TRITONSERVER_InferenceRequestSetStringParameter(request, key, text);
    if (json_is(value, "true") || json_is(value, "false"))
        return TRITONSERVER_InferenceRequestSetBoolParameter(request, key, *value.start == 't');
    snprintf(number, sizeof number, "%.*s", (int)(value.end - value.start), value.start);
    errno = 0;
    int64_t integer = strtoll(number, &end, 10);
    if (*end == 0 && errno == 0)
        return TRITONSERVER_InferenceRequestSetIntParameter(request, key, integer);
    double real = strtod(number, &end);
    if (*end == 0 && end > number && strpbrk(number, ".eE"))
        return TRITONSERVER_InferenceRequestSetDoubleParameter(request, key, real);
    return TRITONSERVER_ErrorNew(
        ERROR_INVALID_ARG, "a request parameter is not a string, a 64-bit integer or a boolean");
}

static bool is_valid_text(const char *text)
{
    return text == NULL || utf8_is_valid((Slice){text, strlen(text)});
}

static CallError add_parameters(TRITONSERVER_InferenceRequest *request, const CallMessage *call, const Flow *flow)
{
    CallError error = no_error();
    Json object = {call->parameters.start, call->parameters.start + call->parameters.size};
    JsonMember member;
    for (bool more = json_first(object, &member); more && error.text == NULL; more = json_next(object, &member)) {
        char *key = json_string(member.key), *value = json_string(member.value);
        if (!is_valid_text(key) || !is_valid_text(value))
            error = invalid_error(strdup_printf("a request parameter is not valid Unicode"));
        else if (key && strcmp(key, CHAIN_PARAMETER) != 0 && strcmp(key, HANDLE_PARAMETER) != 0)
            error = call_error_from(set_parameter(request, key, member.value, value));
        free(key);
        free(value);
    }
    char *chain = error.text ? NULL : chain_encode(call);
    if (chain)
        error = call_error_from(TRITONSERVER_InferenceRequestSetStringParameter(request, CHAIN_PARAMETER, chain));
    free(chain);
    if (error.text == NULL && flow)
        error = call_error_from(
            TRITONSERVER_InferenceRequestSetStringParameter(request, HANDLE_PARAMETER, flow_name(flow)));
    return error;
}

static CallError set_details(TRITONSERVER_InferenceRequest *request, const CallMessage *call)
{
    char *id = strdup_slice(call->request_id);
    char *correlation = call->correlation.start ? strdup_slice(call->correlation) : NULL;
    TRITONSERVER_Error *error = NULL;
    if (id == NULL || (call->correlation.start && correlation == NULL))
        error = TRITONSERVER_ErrorNew(ERROR_INVALID_ARG, "an id of the request has a zero byte");
    if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetId(request, id);
    if (error == NULL && correlation)
        error = TRITONSERVER_InferenceRequestSetCorrelationIdString(request, correlation);
    else if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetCorrelationId(request, call->correlation_number);
    if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetFlags(request, (uint32_t)call->flags);
    if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(request, call->timeout_us);
    free(id);
    free(correlation);
    return call_error_from(error);
}

/* Returns why the request cannot be created, in the same words for each reason for which a model is unavailable:
 * Triton's own texts differ.
 */
static CallError not_served_error(const CallMessage *call, const char *model, TRITONSERVER_Error *error)
{
    CallError said = call_error_from(error);
    char version[40] = "";
    if (strcmp(said.code, "NOT_FOUND") != 0 && strcmp(said.code, "UNAVAILABLE") != 0)
        return said;
    if (call->version >= 0)
        snprintf(version, sizeof version, " version %" PRId64, call->version);
    free(said.text);
    return (CallError){strdup_printf("model %s%s is not served here, or is not ready", model, version), "NOT_FOUND"};
}

CallError call_request_new(TRITONSERVER_Server *server, CallConnection *connection, const CallMessage *call,
    const char *model, const Flow *flow, TRITONSERVER_InferenceRequest **request, uint8_t **inputs)
{
    uint32_t answers = 0;
    TRITONSERVER_Error *made = TRITONSERVER_InferenceRequestNew(request, server, model, call->version);
    if (made == NULL)
        made = TRITONSERVER_ServerModelTransactionProperties(server, model, call->version, &answers, NULL);
    if (made)
        return not_served_error(call, model, made);
    if (answers & ANSWERS_MANY_TIMES && !call->stream)
        return (CallError){
            strdup_printf("model %s is decoupled: it may answer many times. Call it with pytriton.stream(...)", model),
            "UNSUPPORTED"};
    CallError error = add_inputs(*request, connection, call, inputs);
    if (error.text == NULL)
        error = add_outputs(*request, call);
    if (error.text == NULL)
        error = add_parameters(*request, call, answers & ANSWERS_MANY_TIMES ? flow : NULL);
    return error.text ? error : set_details(*request, call);
}
