/* tritonserver answers in its own threads: nothing here blocks. */
#define _GNU_SOURCE
#include "calls/call_answers.h"

#include "base/free_memory.h"
#include "base/text.h"
#include "calls/call_outputs.h"
#include "triton/errors.h"
#include "triton/parameters.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* The maximum number of answers of one call that the worker may have unread. */
enum { MOST_UNREAD = 8 };

/* Send an answer and keep the memory that it refers to until it has been read. */
static void send_answer(Call *call, Answer *answer, const Buffer *message)
{
    if (call->flow)
        flow_put(call->flow, answer->bytes);
    answer->next = NULL;
    *call->last_kept = answer;
    call->last_kept = &answer->next;
    call->unread++;
    call->ended |= answer->final;
    connection_send(call->calls->connection, message);
}

static void begin_answer(Buffer *message, const Call *call, uint32_t outputs)
{
    put_array(message, ANSWER_SIZE);
    put_string(message, ANSWER_NAME);
    put_int(message, call->id);
    put_array(message, outputs);
}

static void discard_queue(Call *call)
{
    while (call->queue) {
        Queued *queued = call->queue;
        call->queue = queued->next;
        if (queued->response)
            failed(TRITONSERVER_InferenceResponseDelete(queued->response));
        if (call->flow)
            flow_take(call->flow, queued->bytes);
        free(queued);
    }
    call->last_queued = &call->queue;
}

void call_end(Call *call, const char *text, const char *code)
{
    Buffer message = {0};
    if (call->ended)
        return;
    discard_queue(call);
    begin_answer(&message, call, 0);
    put_bool(&message, true);
    if (text)
        put_clean(&message, text, LONGEST_TEXT);
    else
        put_nil(&message);
    put_string(&message, text ? code : "");
    put_string(&message, "");
    Answer *answer = calloc(1, sizeof *answer);
    message.failed |= answer == NULL;
    call->ended = true;
    if (answer) {
        answer->final = true;
        send_answer(call, answer, &message);
    } else { /* the connection then ends */
        connection_send(call->calls->connection, &message);
    }
    if (call->flow)
        flow_end(call->flow);
    buffer_free(&message);
}

void call_cancel(Call *call)
{
    if (call->request)
        failed(TRITONSERVER_InferenceRequestCancel(call->request));
}

void call_drop(Call *call, const char *text, const char *code)
{
    call_cancel(call);
    call_end(call, text, code);
}

/* Write the parameters of a response as a JSON object in a string; "" when it has none. */
static void put_response_parameters(TRITONSERVER_InferenceResponse *response, uint32_t count, Buffer *message)
{
    Buffer json = {0};
    if (count)
        buffer_puts(&json, "{");
    for (uint32_t i = 0; i < count; i++) {
        const char *name = "";
        int type = -1;
        const void *value = NULL;
        if (!failed(TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value)))
            put_parameter(&json, name, type, value);
    }
    if (count)
        buffer_put(&json, "}", 2); /* with the NUL byte */
    message->failed |= json.failed;
    put_clean(message, count && !json.failed ? (const char *)json.data : "", MOST_BYTES);
    buffer_free(&json);
}

static void answer_outputs(
    Call *call, TRITONSERVER_InferenceResponse *response, uint32_t outputs, uint32_t parameters, bool final)
{
    Buffer message = {0};
    Answer *answer = calloc(1, sizeof *answer);
    const char *wrong = answer ? NULL : "out of memory";
    begin_answer(&message, call, outputs);
    for (uint32_t i = 0; i < outputs && wrong == NULL; i++)
        if (!put_output(call, response, i, answer, &message))
            wrong = "there is no memory, or no descriptor, for its outputs";
    put_bool(&message, final);
    put_nil(&message);
    put_string(&message, "");
    put_response_parameters(response, parameters, &message);
    if (wrong == NULL && message.failed)
        wrong = "out of memory";
    if (wrong == NULL && message.size > MOST_BYTES)
        wrong = "its answer has too many outputs or parameters";
    if (wrong == NULL) {
        answer->final = final;
        send_answer(call, answer, &message);
    } else {
        if (answer)
            free_answer(call, answer);
        call_drop(call, wrong, "UNAVAILABLE");
    }
    buffer_free(&message);
}

/* Pass tritonserver's response to the worker, and free it. */
static void pass_on(Call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    uint32_t outputs = 0, parameters = 0;
    TRITONSERVER_Error *error = response ? TRITONSERVER_InferenceResponseError(response) : NULL;
    if (response && error == NULL)
        error = TRITONSERVER_InferenceResponseOutputCount(response, &outputs);
    if (response && error == NULL)
        error = TRITONSERVER_InferenceResponseParameterCount(response, &parameters);
    if (error) {
        TRITONSERVER_Error_Code code = TRITONSERVER_ErrorCode(error);
        const char *name = (unsigned)code < CODE_COUNT ? codes[code] : "UNKNOWN";
        if (final)
            call_end(call, TRITONSERVER_ErrorMessage(error), name);
        else
            call_drop(call, TRITONSERVER_ErrorMessage(error), name);
    } else if (outputs || parameters || (response && !call->stream)) {
        answer_outputs(call, response, outputs, parameters, final || !call->stream);
    } else if (final) {
        call_end(call, call->stream ? NULL : "the model has not answered", "INTERNAL");
    } /* otherwise it is empty, and others follow */
    if (response)
        failed(TRITONSERVER_InferenceResponseDelete(response));
}

/* Returns why there is no memory to queue more, for free(); NULL if there is. Models of other backends continue
 * however much is queued.
 */
static char *queue_refused(Call *call, uint64_t bytes)
{
    call->unlooked += bytes;
    if (call->unlooked < worth_a_look)
        return NULL;
    call->unlooked = 0;
    return memory_refused(worth_a_look);
}

static void enqueue(Call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    uint64_t bytes = bytes_of(response);
    char *refusal = queue_refused(call, bytes);
    Queued *queued = refusal ? NULL : malloc(sizeof *queued);
    if (queued == NULL) {
        char *text = texted("its answers come faster than they are read: %s", refusal ? refusal : "out of memory");
        if (response)
            failed(TRITONSERVER_InferenceResponseDelete(response));
        call_drop(call, text, "UNAVAILABLE");
        free(text);
        free(refusal);
        return;
    }
    *queued = (Queued){.response = response, .bytes = bytes, .final = final};
    if (call->flow)
        flow_put(call->flow, bytes);
    *call->last_queued = queued;
    call->last_queued = &queued->next;
}

static void answered(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    Call *call = userp;
    bool final = flags & RESPONSE_FINAL, unwanted;
    pthread_mutex_lock(&call->calls->lock);
    unwanted = call->ended;
    if (!unwanted && call->stream && (call->queue || call->unread >= MOST_UNREAD))
        enqueue(call, response, final);
    else if (!unwanted)
        pass_on(call, response, final);
    pthread_mutex_unlock(&call->calls->lock);
    if (unwanted && response)
        failed(TRITONSERVER_InferenceResponseDelete(response));
    if (final)
        call_unref(call);
}

/* The request's inputs have been read. The request itself is kept while it may still be cancelled. */
static void released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
{
    Call *call = userp;
    (void)request;
    (void)flags;
    free(call->inputs);
    call->inputs = NULL;
    call_unref(call);
}

CallError call_start(Call *call)
{
    TRITONSERVER_ResponseAllocator *allocator = call_outputs_allocator();
    if (allocator == NULL)
        return (CallError){texted("tritonserver gives no memory for outputs"), "INTERNAL"};
    TRITONSERVER_Error *error = TRITONSERVER_InferenceRequestSetReleaseCallback(call->request, released, call);
    if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetResponseCallback(call->request, allocator, call, answered, call);
    if (error == NULL) {
        __atomic_add_fetch(&call->refs, 2, __ATOMIC_RELAXED);
        error = TRITONSERVER_ServerInferAsync(call->calls->server, call->request, NULL);
        if (error) { /* the response is then still ours */
            call_unref(call);
            call_unref(call);
        }
    }
    return call_error_of(error);
}

bool call_read_one(Call *call, bool *final)
{
    Answer *answer = call->kept;
    if (answer == NULL)
        return false;
    call->kept = answer->next;
    if (call->kept == NULL)
        call->last_kept = &call->kept;
    call->unread--;
    *final = answer->final;
    if (call->flow)
        flow_take(call->flow, answer->bytes);
    free_answer(call, answer);
    while (call->queue && call->unread < MOST_UNREAD && !call->ended) {
        Queued *queued = call->queue;
        call->queue = queued->next;
        if (call->queue == NULL)
            call->last_queued = &call->queue;
        pass_on(call, queued->response, queued->final);
        if (call->flow) /* from now on it counts as an answer */
            flow_take(call->flow, queued->bytes);
        free(queued);
    }
    return true;
}

void call_forget(Call *call)
{
    call->ended = true;
    if (call->request)
        failed(TRITONSERVER_InferenceRequestCancel(call->request));
    if (call->flow)
        flow_end(call->flow);
    discard_queue(call);
    while (call->kept) {
        Answer *answer = call->kept;
        call->kept = answer->next;
        free_answer(call, answer);
    }
    call->last_kept = &call->kept;
}
