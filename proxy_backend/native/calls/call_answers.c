/* What tritonserver answers to calls, in threads of its own: nothing here waits. Outputs are written by who makes them
 * into memory that the worker reads; those of streams, which may come faster than it reads, when they are sent.
 */
#define _GNU_SOURCE
#include "calls/call_answers.h"

#include "base/free_memory.h"
#include "base/text.h"
#include "triton/datatypes.h"
#include "triton/errors.h"
#include "triton/parameters.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* Answers of one call that the worker may have unread; the longest text of an error. */
enum { MOST_UNREAD = 8, LONGEST_TEXT = 1 << 15 };

/* Memory that tritonserver has for an output: a slot, or just bytes. */
typedef struct {
    Slots *slots;
    Slot *slot;
    uint8_t *bytes;
} Piece;

/* ── memory of outputs ──────────────────────────────────────────────────────────────────────────── */

static TRITONSERVER_Error *allocate(TRITONSERVER_ResponseAllocator *allocator, const char *output, size_t size,
    int memory_type, int64_t memory_type_id, void *userp, void **buffer, void **buffer_userp, int *actual_memory_type,
    int64_t *actual_memory_type_id)
{
    Call *call = userp;
    (void)allocator;
    (void)output;
    (void)memory_type;
    (void)memory_type_id;
    *buffer = *buffer_userp = NULL;
    *actual_memory_type = MEMORY_CPU;
    *actual_memory_type_id = 0;
    if (size == 0)
        return NULL;
    Piece *piece = calloc(1, sizeof *piece);
    char *failure = piece ? NULL : strdup("out of memory");
    if (piece && call->stream) {
        failure = size < worth_a_look ? NULL : memory_refused(2 * size); /* a copy of it is sent */
        piece->bytes = failure ? NULL : malloc(size);
        *buffer = piece->bytes;
        if (failure == NULL && piece->bytes == NULL)
            failure = strdup("out of memory");
    } else if (piece) {
        piece->slots = &call->calls->slots;
        piece->slot = slot_take(piece->slots, size, &failure);
        *buffer = piece->slot ? piece->slot->arena.map : NULL;
    }
    *buffer_userp = piece;
    if (*buffer)
        return NULL;
    TRITONSERVER_Error *error = TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, failure ? failure : "out of memory");
    free(failure);
    free(piece);
    *buffer_userp = NULL;
    return error;
}

static TRITONSERVER_Error *release_buffer(TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
    size_t size, int memory_type, int64_t memory_type_id)
{
    Piece *piece = buffer_userp;
    (void)allocator;
    (void)buffer;
    (void)size;
    (void)memory_type;
    (void)memory_type_id;
    if (piece && piece->slot) /* else the answer has it, which has been sent */
        slot_give_back(piece->slots, piece->slot);
    if (piece)
        free(piece->bytes);
    free(piece);
    return NULL;
}

static TRITONSERVER_ResponseAllocator *allocator;

static void make_allocator(void)
{
    failed(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
}

/* ── answers ────────────────────────────────────────────────────────────────────────────────────── */

static void free_answer(Call *call, Answer *answer)
{
    while (answer->slots) {
        Slot *slot = answer->slots;
        answer->slots = slot->next;
        slot_give_back(&call->calls->slots, slot);
    }
    free(answer);
}

/* Send an answer and keep what it refers to until it has been read. */
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
    } else { /* then the connection ends */
        connection_send(call->calls->connection, &message);
    }
    if (call->flow)
        flow_end(call->flow);
    buffer_free(&message);
}

void call_drop(Call *call, const char *text, const char *code)
{
    if (call->request)
        failed(TRITONSERVER_InferenceRequestCancel(call->request));
    call_end(call, text, code);
}

/* Where an output lies that tritonserver had written elsewhere. */
static Slot *copied_slot(Call *call, const void *bytes, size_t size)
{
    char *failure = NULL;
    Slot *slot = slot_take(&call->calls->slots, size, &failure);
    if (slot)
        memcpy(slot->arena.map, bytes, size);
    free(failure);
    return slot;
}

/* Put one output into an answer. False: there is no memory for it. */
static bool put_output(
    Call *call, TRITONSERVER_InferenceResponse *response, uint32_t index, Answer *answer, Buffer *message)
{
    const char *name;
    int datatype, memory_type;
    const int64_t *shape;
    uint64_t dims;
    const void *bytes;
    size_t size;
    int64_t memory_id, number = 0;
    void *userp;
    if (failed(TRITONSERVER_InferenceResponseOutput(
            response, index, &name, &datatype, &shape, &dims, &bytes, &size, &memory_type, &memory_id, &userp)))
        return false;
    Piece *piece = userp;
    if (size) {
        Slot *slot = piece && piece->slot ? piece->slot : copied_slot(call, bytes, size);
        if (piece)
            piece->slot = NULL;
        if (slot == NULL)
            return false;
        slot->next = answer->slots;
        answer->slots = slot;
        answer->bytes += size;
        if (!slot_announce(&call->calls->slots, slot))
            return false;
        number = slot->number;
    }
    put_array(message, TENSOR_REF_SIZE);
    put_clean(message, name, LONGEST_TEXT);
    put_string(message, TRITONSERVER_DataTypeString(datatype));
    put_array(message, (uint32_t)dims);
    for (uint64_t i = 0; i < dims; i++)
        put_int(message, shape[i]);
    put_int(message, number);
    put_int(message, 0);
    put_uint(message, size);
    return true;
}

/* The parameters of a response, as an object of JSON in a string; "" when it has none. */
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
        buffer_put(&json, "}", 2); /* with the zero byte */
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

/* Answer what tritonserver has answered; the response is freed. */
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
    } /* else it is an empty one, of which others follow */
    if (response)
        failed(TRITONSERVER_InferenceResponseDelete(response));
}

static uint64_t bytes_of(TRITONSERVER_InferenceResponse *response)
{
    uint32_t count = 0;
    uint64_t total = 0;
    if (response == NULL || failed(TRITONSERVER_InferenceResponseOutputCount(response, &count)))
        return 0;
    for (uint32_t i = 0; i < count; i++) {
        const char *name;
        int datatype, memory_type;
        const int64_t *shape;
        uint64_t dims;
        const void *bytes;
        size_t size = 0;
        int64_t memory_id;
        void *userp;
        if (!failed(TRITONSERVER_InferenceResponseOutput(
                response, i, &name, &datatype, &shape, &dims, &bytes, &size, &memory_type, &memory_id, &userp)))
            total += size;
    }
    return total;
}

/* Models of other backends go on however much is queued: why there is no memory for it, for free(). */
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
        call_drop(call, text ? text : "out of memory", "UNAVAILABLE");
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

/* Its inputs have been read. The request itself is kept while it may still be cancelled. */
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
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_allocator);
    if (allocator == NULL)
        return (CallError){texted("tritonserver gives no memory for outputs"), "INTERNAL"};
    TRITONSERVER_Error *error = TRITONSERVER_InferenceRequestSetReleaseCallback(call->request, released, call);
    if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetResponseCallback(call->request, allocator, call, answered, call);
    if (error == NULL) {
        __atomic_add_fetch(&call->refs, 2, __ATOMIC_RELAXED);
        error = TRITONSERVER_ServerInferAsync(call->calls->server, call->request, NULL);
        if (error) { /* then it is still ours */
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
        if (call->flow) /* it counts as an answer now */
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
