#define _GNU_SOURCE
#include "translation/responses.h"

#include "base/strings.h"
#include "triton/errors.h"
#include "triton/parameters.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

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
    triton_error_consume(TRITONBACKEND_RequestOutputCount(to->request, &count));
    for (uint32_t i = 0; i < count; i++)
        if (!triton_error_consume(TRITONBACKEND_RequestOutputName(to->request, i, &name)) && strcmp(name, output) == 0)
            return true;
    return count == 0;
}

static TRITONSERVER_Error_Code error_code_named(Slice name)
{
    for (size_t i = 0; i < sizeof error_code_names / sizeof *error_code_names; i++)
        if (slice_is(name, error_code_names[i]))
            return (TRITONSERVER_Error_Code)i;
    return ERROR_INTERNAL;
}

/* The fields of a response other than its outputs (ResponseRef and ResponseDetails). */
typedef struct {
    bool has_error;
    Slice error, code, parameters;
    bool final, empty, reschedule;
} Details;

static void get_details(Reader *reader, Details *details)
{
    if (msgpack_get_nil(reader))
        return;
    uint32_t fields = msgpack_get_array(reader); /* Fields at the end may be missing. */
    if (fields > RESPONSE_DETAILS_code)
        details->code = msgpack_get_text(reader);
    if (fields > RESPONSE_DETAILS_parameters)
        details->parameters = msgpack_get_text(reader);
    if (fields > RESPONSE_DETAILS_final)
        details->final = msgpack_get_bool(reader);
    if (fields > RESPONSE_DETAILS_empty)
        details->empty = msgpack_get_bool(reader);
    if (fields > RESPONSE_DETAILS_reschedule)
        details->reschedule = msgpack_get_bool(reader);
    msgpack_skip_rest(reader, fields, fields < RESPONSE_DETAILS_SIZE ? fields : RESPONSE_DETAILS_SIZE);
}

/* Read all fields of a response except the outputs, and position `outputs` at these. */
static bool get_details_skip_outputs(Lane *lane, Reader *answer, Reader *outputs, Details *details)
{
    uint32_t fields = msgpack_get_array(answer);
    *outputs = *answer;
    msgpack_skip(answer, 0);
    details->has_error = fields > RESPONSE_REF_error && !msgpack_get_nil(answer);
    if (details->has_error)
        details->error = msgpack_get_text(answer);
    if (fields > RESPONSE_REF_details)
        get_details(answer, details);
    msgpack_skip_rest(answer, fields, fields < RESPONSE_REF_SIZE ? fields : RESPONSE_REF_SIZE);
    return !answer->malformed || output_fault(lane, NULL, "came in a malformed response");
}

/* Add the outputs to a response. */
static bool get_outputs(
    Lane *lane, Reader *answer, const Receiver *to, TRITONBACKEND_Response *response, TRITONSERVER_Error **error)
{
    uint32_t count = msgpack_get_array(answer);
    uint64_t total = 0; /* Cannot overflow: the total stays below the available memory. */
    for (uint32_t i = 0; i < count; i++) {
        Tensor tensor = {0};
        bool right = output_read(lane, answer, to->partial && lane->peer.readable, &tensor);
        if (right && *error == NULL && is_requested(to, tensor.name)) {
            total += (uint64_t)tensor.size;
            right = output_fill(lane, to->partial, response, &tensor, total, error);
        }
        free(tensor.name);
        if (!right)
            return false;
    }
    return !answer->malformed || output_fault(lane, NULL, "is described in a malformed way");
}

static TRITONSERVER_Error *new_response(const Receiver *to, TRITONBACKEND_Response **response)
{
    if (to->partial && to->partial->response) {
        *response = to->partial->response;
        return NULL;
    }
    TRITONSERVER_Error *error = to->request ? TRITONBACKEND_ResponseNew(response, to->request)
                                            : TRITONBACKEND_ResponseNewFromFactory(response, to->factory);
    if (to->partial && error == NULL)
        to->partial->response = *response;
    return error;
}

/* Returns an error text with the id of the receiver's request, for free(). */
static char *error_text_for(const Proxy *proxy, const Receiver *to, const char *text)
{
    char *given = to->request ? request_given_id(proxy, to->request) : NULL;
    char *whole = text_with_request_id(text, given ? given : to->name, &to->sent);
    free(given);
    return whole;
}

static char *fault_text(const Proxy *proxy, const Receiver *to)
{
    char *plain = strdup_printf("model %s: %s", proxy->model->name, proxy->lane->fault);
    char *text = error_text_for(proxy, to, plain);
    free(plain);
    return text;
}

/* Fill a response. Returns NULL, or the error to send instead of its outputs. */
static TRITONSERVER_Error *fill_response(Proxy *proxy, const Receiver *to, const Details *details, Reader outputs,
    TRITONBACKEND_Response *response, bool *right)
{
    TRITONSERVER_Error *error = NULL;
    *right = get_outputs(proxy->lane, &outputs, to, response, &error);
    if (*right && !details->has_error)
        return error;
    triton_error_consume(error);
    char *text = *right ? strdup_printable(details->error) : fault_text(proxy, to);
    error = TRITONSERVER_ErrorNew(*right ? error_code_named(details->code) : ERROR_UNAVAILABLE, text ? text : "");
    free(text);
    return error;
}

bool response_client_is_gone(TRITONBACKEND_ResponseFactory *factory)
{
    bool gone = false;
    return !triton_error_consume(TRITONBACKEND_ResponseFactoryIsCancelled(factory, &gone)) && gone;
}

/* Create a response. Once created, it must be sent: tritonserver reserves its place and holds back later ones. Returns
 * false if there is none, so that the request cannot be answered at all.
 */
static bool open_response(const Proxy *proxy, const Receiver *to, TRITONBACKEND_Response **response, Outcome *outcome)
{
    TRITONSERVER_Error *error = new_response(to, response);
    if (error == NULL)
        return true;
    log_error("model %s: %s", proxy->model->name, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
    outcome->failed = outcome->final = true;
    return false;
}

/* Add a string as the output of a response. */
static TRITONSERVER_Error *fill_text(Lane *lane, TRITONBACKEND_Response *response, char *output, Slice text)
{
    Buffer *serialized = &lane->serialized;
    uint32_t size = (uint32_t)text.size; /* A message has at most MAX_SPILLED_BYTES. */
    buffer_clear(serialized);
    buffer_put(serialized, &size, sizeof size);
    buffer_put_slice(serialized, text);
    if (serialized->failed)
        return TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, "out of memory");
    Tensor tensor = {.name = output, .datatype = TYPE_BYTES, .shape = {1}, .dims = 1, .elements = 1};
    tensor.size = (int64_t)serialized->size;
    tensor.bytes = (const uint8_t *)serialized->data;
    TRITONSERVER_Error *error = NULL;
    if (!output_fill(lane, NULL, response, &tensor, serialized->size, &error) && error == NULL)
        error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, lane->fault);
    buffer_reset(serialized, INLINE_BYTES);
    return error;
}

void response_send_text(Proxy *proxy, const Receiver *to, char *output, Slice text, Outcome *outcome)
{
    TRITONBACKEND_Response *response = NULL;
    *outcome = (Outcome){0};
    outcome->nothing_sent = !to->is_call && response_client_is_gone(to->factory);
    if (outcome->nothing_sent || !open_response(proxy, to, &response, outcome))
        return;
    TRITONSERVER_Error *error = is_requested(to, output) ? fill_text(proxy->lane, response, output, text) : NULL;
    outcome->failed = error != NULL;
    triton_error_consume(TRITONBACKEND_ResponseSend(response, 0, error));
    triton_error_consume(error);
}

bool response_forward(Proxy *proxy, const Receiver *to, Reader *answer, Outcome *outcome)
{
    Details details = {.error = {"", 0}, .code = {"", 0}, .parameters = {"", 0}};
    Reader outputs;
    *outcome = (Outcome){0};
    if (!get_details_skip_outputs(proxy->lane, answer, &outputs, &details))
        return false;
    outcome->reschedule = details.reschedule;
    if (details.reschedule) {
        if (to->partial && to->partial->response)
            triton_error_consume(TRITONBACKEND_ResponseDelete(to->partial->response));
        return true;
    }
    outcome->final = to->request || details.final;
    /* Do not send to a disconnected client: any activity at the moment of a cancellation is risky (delayed_close). */
    outcome->nothing_sent = to->factory && (details.empty || (!to->is_call && response_client_is_gone(to->factory)));
    if (outcome->nothing_sent)
        return true;
    TRITONBACKEND_Response *response = NULL;
    if (!open_response(proxy, to, &response, outcome))
        return true;
    bool right;
    TRITONSERVER_Error *error = fill_response(proxy, to, &details, outputs, response, &right);
    if (proxy->lane->worker_lost) {
        triton_error_consume(error);
        return false;
    }
    /* Give the credit before tritonserver sends the response, which can take long over gRPC. */
    if (right && to->last)
        lane_credit_lent(proxy->lane);
    outcome->failed = error != NULL;
    outcome->final |= !right;
    set_response_parameters(response, details.parameters);
    triton_error_consume(TRITONBACKEND_ResponseSend(response, outcome->final ? RESPONSE_FINAL : 0, error));
    triton_error_consume(error);
    return right;
}

void response_send_error(
    const Proxy *proxy, const Receiver *to, TRITONSERVER_Error_Code code, const char *text, bool names)
{
    TRITONBACKEND_Response *response;
    TRITONSERVER_Error *error = new_response(to, &response);
    if (error) {
        log_error("cannot answer a request: %s", TRITONSERVER_ErrorMessage(error));
        TRITONSERVER_ErrorDelete(error);
        return;
    }
    const char *plain = text ? text : "out of memory";
    char *whole = names ? error_text_for(proxy, to, plain) : NULL;
    error = TRITONSERVER_ErrorNew(code, whole ? whole : plain);
    free(whole);
    triton_error_consume(TRITONBACKEND_ResponseSend(response, RESPONSE_FINAL, error));
    TRITONSERVER_ErrorDelete(error);
}
