/* From a worker's answer to tritonserver's responses. Outputs are copied once, from the worker's memory to where
 * tritonserver wants them; all that the worker says about them is checked.
 */
#define _GNU_SOURCE
#include "tensors.h"

#include "json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIMS = 64 };

/* A tensor of the worker's, checked. */
typedef struct {
    char *name;
    int datatype;
    int64_t shape[MOST_DIMS];
    uint32_t dims;
    int64_t size;
    const uint8_t *bytes;
} Tensor;

static bool wrong(Lane *lane, const char *name, const char *what)
{
    snprintf(lane->fault, sizeof lane->fault, "the worker's output %.60s %s", name ? name : "", what);
    return false;
}

/* Read one tensor; false: `lane->fault` says what is wrong. The name is for free(). */
static bool get_tensor(Lane *lane, Reader *reader, Tensor *tensor)
{
    uint32_t fields = get_array(reader);
    uint64_t elements = 1, size;
    tensor->name = text_copy(get_text(reader));
    Text datatype = get_text(reader);
    for (tensor->datatype = TYPE_COUNT - 1; tensor->datatype > 0; tensor->datatype--)
        if (text_is(datatype, datatypes[tensor->datatype].name))
            break;
    tensor->dims = get_array(reader);
    if (tensor->dims > MOST_DIMS)
        return wrong(lane, tensor->name, "has too many dimensions");
    for (uint32_t i = 0; i < tensor->dims; i++) {
        tensor->shape[i] = get_int(reader);
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(elements, (uint64_t)tensor->shape[i], &elements))
            return wrong(lane, tensor->name, "has an impossible shape");
    }
    int64_t memory = get_int(reader), offset = get_int(reader);
    tensor->size = get_int(reader);
    skip_rest(reader, fields, 6);
    if (reader->malformed || tensor->name == NULL || tensor->datatype == TYPE_INVALID)
        return wrong(lane, tensor->name, "is described in a malformed way");
    tensor->bytes = (const uint8_t *)"";
    if (tensor->size != 0) {
        tensor->bytes = lane_memory(lane, memory, offset, tensor->size);
        if (tensor->bytes == NULL)
            return false;
    }
    int element = datatypes[tensor->datatype].size;
    if (element ? __builtin_mul_overflow(elements, (uint64_t)element, &size) || (int64_t)size != tensor->size
                : !are_strings(tensor->bytes, (uint64_t)tensor->size, elements))
        return wrong(lane, tensor->name, "has another size than its shape says");
    return true;
}

static bool is_requested(const Receiver *to, const char *output)
{
    uint32_t count = to->requested_count;
    const char *name;
    if (to->request == NULL) {
        for (uint32_t i = 0; i < count; i++)
            if (strcmp(to->requested[i], output) == 0)
                return true;
        return count == 0;
    }
    failed(TRITONBACKEND_RequestOutputCount(to->request, &count));
    for (uint32_t i = 0; i < count; i++)
        if (!failed(TRITONBACKEND_RequestOutputName(to->request, i, &name)) && strcmp(name, output) == 0)
            return true;
    return count == 0;
}

/* Give tritonserver one output; its error if it does not take it. */
static TRITONSERVER_Error *fill(TRITONBACKEND_Response *response, const Tensor *tensor)
{
    TRITONBACKEND_Output *output;
    void *buffer = NULL;
    int memory_type = MEMORY_CPU;
    int64_t memory_id = 0;
    TRITONSERVER_Error *error = TRITONBACKEND_ResponseOutput(
        response, &output, tensor->name, tensor->datatype, tensor->shape, tensor->dims);
    if (error == NULL)
        error = TRITONBACKEND_OutputBuffer(output, &buffer, (uint64_t)tensor->size, &memory_type, &memory_id);
    if (error == NULL && tensor->size && !copied(buffer, tensor->bytes, (size_t)tensor->size, memory_type))
        error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, "an output cannot be copied to the device it is wanted on");
    return error;
}

static void set_parameters(TRITONBACKEND_Response *response, Text text)
{
    Json object = {text.start, text.start + text.size};
    JsonMember member;
    for (bool more = json_first(object, &member); more; more = json_next(object, &member)) {
        char *key = json_string(member.key), *value = json_string(member.value);
        char number[32];
        snprintf(number, sizeof number, "%.*s", (int)(member.value.end - member.value.start), member.value.start);
        char *end;
        errno = 0;
        int64_t integer = strtoll(number, &end, 10);
        if (key == NULL)
            continue;
        if (value)
            failed(TRITONBACKEND_ResponseSetStringParameter(response, key, value));
        else if (json_is(member.value, "true") || json_is(member.value, "false"))
            failed(TRITONBACKEND_ResponseSetBoolParameter(response, key, *number == 't'));
        else if (*end == 0 && errno == 0)
            failed(TRITONBACKEND_ResponseSetIntParameter(response, key, integer));
        else
            failed(TRITONBACKEND_ResponseSetDoubleParameter(response, key, strtod(number, NULL)));
        free(key);
        free(value);
    }
}

static TRITONSERVER_Error_Code code_named(Text name)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (text_is(name, codes[i]))
            return (TRITONSERVER_Error_Code)i;
    return ERROR_INTERNAL;
}

/* What a response says besides its outputs: ResponseRef and ResponseDetails. */
typedef struct {
    bool has_error;
    Text error, code, parameters;
    bool final, empty, reschedule;
} Details;

static void get_details(Reader *reader, Details *details)
{
    if (get_nil(reader))
        return;
    uint32_t fields = get_array(reader);
    details->code = get_text(reader);
    details->parameters = get_text(reader);
    details->final = get_bool(reader);
    details->empty = get_bool(reader);
    details->reschedule = get_bool(reader);
    skip_rest(reader, fields, 5);
}

/* Read all of a response but its outputs, which `outputs` is left in front of. */
static bool get_all_but_outputs(Lane *lane, Reader *answer, Reader *outputs, Details *details)
{
    uint32_t fields = get_array(answer);
    *outputs = *answer;
    skip(answer, 0);
    details->has_error = !get_nil(answer);
    if (details->has_error)
        details->error = get_text(answer);
    get_details(answer, details);
    skip_rest(answer, fields, 3);
    return !answer->malformed || wrong(lane, NULL, "came in a malformed response");
}

/* Read the outputs into a response. */
static bool get_outputs(
    Lane *lane, Reader *answer, const Receiver *to, TRITONBACKEND_Response *response, TRITONSERVER_Error **error)
{
    uint32_t count = get_array(answer);
    for (uint32_t i = 0; i < count; i++) {
        Tensor tensor = {0};
        bool right = get_tensor(lane, answer, &tensor);
        if (right && *error == NULL && is_requested(to, tensor.name))
            *error = fill(response, &tensor);
        free(tensor.name);
        if (!right)
            return false;
    }
    return !answer->malformed || wrong(lane, NULL, "is described in a malformed way");
}

static TRITONSERVER_Error *new_response(const Receiver *to, TRITONBACKEND_Response **response)
{
    return to->request ? TRITONBACKEND_ResponseNew(response, to->request)
                       : TRITONBACKEND_ResponseNewFromFactory(response, to->factory);
}

/* What to send with a response: NULL, or the error instead of its outputs. */
static TRITONSERVER_Error *fill_response(
    Proxy *proxy, const Receiver *to, const Details *details, Reader outputs, TRITONBACKEND_Response *response,
    bool *right)
{
    TRITONSERVER_Error *error = NULL;
    *right = get_outputs(proxy->lane, &outputs, to, response, &error);
    if (*right && !details->has_error)
        return error;
    failed(error);
    char *text = *right ? text_without_nul(details->error) : texted("model %s: %s", proxy->model->name, proxy->lane->fault);
    error = TRITONSERVER_ErrorNew(*right ? code_named(details->code) : ERROR_UNAVAILABLE, text ? text : "");
    free(text);
    return error;
}

bool is_gone(TRITONBACKEND_ResponseFactory *factory)
{
    bool gone = false;
    return !failed(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &gone)) && gone;
}

bool pass_response(Proxy *proxy, const Receiver *to, Reader *answer, Outcome *outcome)
{
    Details details = {.error = {"", 0}, .code = {"", 0}, .parameters = {"", 0}};
    Reader outputs;
    *outcome = (Outcome){0};
    if (!get_all_but_outputs(proxy->lane, answer, &outputs, &details))
        return false;
    outcome->reschedule = details.reschedule;
    if (details.reschedule)
        return true;
    outcome->final = to->request || details.final;
    /* To one that has gone nothing is sent: the less in the moment of a cancellation, the better (endings.c). */
    outcome->silent = to->factory && (details.empty || is_gone(to->factory));
    if (outcome->silent)
        return true;
    /* What is made has to be sent: tritonserver keeps a place for it, and all that comes later waits behind it. */
    TRITONBACKEND_Response *response = NULL;
    TRITONSERVER_Error *error = new_response(to, &response);
    if (error) { /* then tritonserver cannot be answered at all */
        log_error("model %s: %s", proxy->model->name, TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
        outcome->failed = outcome->final = true;
        return true;
    }
    bool right;
    error = fill_response(proxy, to, &details, outputs, response, &right);
    outcome->failed = error != NULL;
    outcome->final |= !right;
    set_parameters(response, details.parameters);
    failed(TRITONBACKEND_ResponseSend(response, outcome->final ? RESPONSE_FINAL : 0, error));
    failed(error);
    return right;
}

void send_error(const Receiver *to, TRITONSERVER_Error_Code code, const char *text)
{
    TRITONBACKEND_Response *response;
    TRITONSERVER_Error *error = new_response(to, &response);
    if (error) {
        log_error("a request cannot be answered: %s", TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
        return;
    }
    error = TRITONSERVER_ErrorNew(code, text ? text : "out of memory");
    failed(TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
}
