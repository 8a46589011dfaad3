#define _GNU_SOURCE
#include "calls/call.h"

#include "base/available_memory.h"
#include "base/strings.h"
#include "triton/errors.h"
#include "triton/parameters.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* Memory of an output that tritonserver writes: a slot, or plain memory. */
typedef struct {
    Slots *slots;
    Slot *slot;
    uint8_t *bytes;
} OutputMemory;

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
    OutputMemory *memory = calloc(1, sizeof *memory);
    char *failure = memory ? NULL : strdup("out of memory");
    if (memory && call->stream) {
        /* A large output is also copied to a slot, so it needs its size twice. */
        failure = size < memory_check_interval ? NULL : memory_check(2 * size);
        memory->bytes = failure ? NULL : malloc(size);
        *buffer = memory->bytes;
        if (failure == NULL && memory->bytes == NULL)
            failure = strdup("out of memory");
    } else if (memory) {
        memory->slots = &call->calls->slots;
        memory->slot = slot_acquire(memory->slots, size, &failure);
        *buffer = memory->slot ? memory->slot->arena.map : NULL;
    }
    *buffer_userp = memory;
    if (*buffer)
        return NULL;
    TRITONSERVER_Error *error = TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, failure ? failure : "out of memory");
    free(failure);
    free(memory);
    *buffer_userp = NULL;
    return error;
}

static TRITONSERVER_Error *release_buffer(TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
    size_t size, int memory_type, int64_t memory_type_id)
{
    OutputMemory *memory = buffer_userp;
    (void)allocator;
    (void)buffer;
    (void)size;
    (void)memory_type;
    (void)memory_type_id;
    if (memory && memory->slot) /* Otherwise, the slot belongs to an answer that has been sent. */
        slot_release(memory->slots, memory->slot);
    if (memory)
        free(memory->bytes);
    free(memory);
    return NULL;
}

static TRITONSERVER_ResponseAllocator *allocator_instance;

static void make_allocator(void)
{
    triton_error_consume(TRITONSERVER_ResponseAllocatorNew(&allocator_instance, allocate, release_buffer, NULL));
}

/* Returns the allocator for outputs of calls, or NULL without memory. tritonserver passes the call to it. */
static TRITONSERVER_ResponseAllocator *call_outputs_allocator(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_allocator);
    return allocator_instance;
}

/* Free an answer and release its slots. */
static void call_answer_free(Call *call, Answer *answer)
{
    while (answer->slots) {
        Slot *slot = answer->slots;
        answer->slots = slot->next;
        slot_release(&call->calls->slots, slot);
    }
    free(answer);
}

/* Copy an output that is not in a slot to a new slot. */
static Slot *copy_to_slot(Call *call, const void *bytes, size_t size)
{
    char *failure = NULL;
    Slot *slot = slot_acquire(&call->calls->slots, size, &failure);
    if (slot)
        memcpy(slot->arena.map, bytes, size);
    free(failure);
    return slot;
}

/* Add an output of a response to an answer and its message. Returns false without memory. */
static bool call_output_put(
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
    if (triton_error_consume(TRITONSERVER_InferenceResponseOutput(
            response, index, &name, &datatype, &shape, &dims, &bytes, &size, &memory_type, &memory_id, &userp)))
        return false;
    OutputMemory *memory = userp;
    if (size) {
        Slot *slot = memory && memory->slot ? memory->slot : copy_to_slot(call, bytes, size);
        if (memory)
            memory->slot = NULL;
        if (slot == NULL)
            return false;
        slot->next = answer->slots;
        answer->slots = slot;
        answer->bytes += size;
        if (!slot_announce(&call->calls->slots, slot))
            return false;
        number = slot->number;
    }
    msgpack_put_array(message, TENSOR_REF_SIZE);
    msgpack_put_sanitized(message, name, MAX_TEXT_BYTES);
    msgpack_put_string(message, TRITONSERVER_DataTypeString(datatype));
    msgpack_put_array(message, (uint32_t)dims);
    for (uint64_t i = 0; i < dims; i++)
        msgpack_put_int(message, shape[i]);
    msgpack_put_int(message, number);
    msgpack_put_int(message, 0);
    msgpack_put_uint(message, size);
    return true;
}

/* Returns the total size of a response's outputs. */
static uint64_t response_size(TRITONSERVER_InferenceResponse *response)
{
    uint32_t count = 0;
    uint64_t total = 0;
    if (response == NULL || triton_error_consume(TRITONSERVER_InferenceResponseOutputCount(response, &count)))
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
        if (!triton_error_consume(TRITONSERVER_InferenceResponseOutput(
                response, i, &name, &datatype, &shape, &dims, &bytes, &size, &memory_type, &memory_id, &userp)))
            total += size;
    }
    return total;
}

/* Maximum number of unread answers per call. Further answers are queued. */
enum { MAX_UNREAD = 8 };

/* Send an answer. Its memory is kept until the worker has read it. */
static void send_answer(Call *call, Answer *answer, const Buffer *message)
{
    if (call->flow)
        flow_add_unread(call->flow, answer->bytes);
    answer->next = NULL;
    *call->unread_tail = answer;
    call->unread_tail = &answer->next;
    call->unread++;
    call->ended |= answer->final;
    call_connection_send(call->calls->connection, message);
}

static void begin_answer(Buffer *message, const Call *call, uint32_t outputs)
{
    msgpack_put_array(message, ANSWER_SIZE);
    msgpack_put_string(message, ANSWER_NAME);
    msgpack_put_int(message, call->id);
    msgpack_put_array(message, outputs);
}

static void discard_queue(Call *call)
{
    while (call->queue_head) {
        QueuedAnswer *queued = call->queue_head;
        call->queue_head = queued->next;
        if (queued->response)
            triton_error_consume(TRITONSERVER_InferenceResponseDelete(queued->response));
        if (call->flow)
            flow_mark_read(call->flow, queued->bytes);
        free(queued);
    }
    call->queue_tail = &call->queue_head;
}

void call_end(Call *call, const char *text, const char *code)
{
    Buffer message = {0};
    if (call->ended)
        return;
    discard_queue(call);
    begin_answer(&message, call, 0);
    msgpack_put_bool(&message, true);
    if (text)
        msgpack_put_sanitized(&message, text, MAX_TEXT_BYTES);
    else
        msgpack_put_nil(&message);
    msgpack_put_string(&message, text ? code : "");
    msgpack_put_string(&message, "");
    Answer *answer = calloc(1, sizeof *answer);
    message.failed |= answer == NULL;
    call->ended = true;
    if (answer) {
        answer->final = true;
        send_answer(call, answer, &message);
    } else { /* Without memory, close the connection: the worker would wait forever. */
        call_connection_send(call->calls->connection, &message);
    }
    if (call->flow)
        flow_end(call->flow);
    buffer_free(&message);
}

void call_cancel(Call *call)
{
    if (call->request)
        triton_error_consume(TRITONSERVER_InferenceRequestCancel(call->request));
}

void call_drop(Call *call, const char *text, const char *code)
{
    call_cancel(call);
    call_end(call, text, code);
}

/* Write the parameters of a response as a JSON object in a string, or "" if there are none. */
static void put_response_parameters(TRITONSERVER_InferenceResponse *response, uint32_t count, Buffer *message)
{
    Buffer json = {0};
    if (count)
        buffer_put_string(&json, "{");
    for (uint32_t i = 0; i < count; i++) {
        const char *name = "";
        int type = -1;
        const void *value = NULL;
        if (!triton_error_consume(TRITONSERVER_InferenceResponseParameter(response, i, &name, &type, &value)))
            put_parameter(&json, name, type, value);
    }
    if (count)
        buffer_put(&json, "}", 2); /* Includes the terminating NUL. */
    message->failed |= json.failed;
    msgpack_put_sanitized(message, count && !json.failed ? json.data : "", MAX_MESSAGE_BYTES);
    buffer_free(&json);
}

static void send_outputs(
    Call *call, TRITONSERVER_InferenceResponse *response, uint32_t outputs, uint32_t parameters, bool final)
{
    Buffer message = {0};
    Answer *answer = calloc(1, sizeof *answer);
    const char *failure = answer ? NULL : "out of memory";
    begin_answer(&message, call, outputs);
    for (uint32_t i = 0; i < outputs && failure == NULL; i++)
        if (!call_output_put(call, response, i, answer, &message))
            failure = "not enough memory or file descriptors for its outputs";
    msgpack_put_bool(&message, final);
    msgpack_put_nil(&message);
    msgpack_put_string(&message, "");
    put_response_parameters(response, parameters, &message);
    if (failure == NULL && message.failed)
        failure = "out of memory";
    if (failure == NULL && message.size > MAX_MESSAGE_BYTES)
        failure = "its answer has too many outputs or parameters";
    if (failure == NULL) {
        answer->final = final;
        send_answer(call, answer, &message);
    } else {
        if (answer)
            call_answer_free(call, answer);
        call_drop(call, failure, "UNAVAILABLE");
    }
    buffer_free(&message);
}

/* Forward a response to the worker, and delete the response. */
static void forward_response(Call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    uint32_t outputs = 0, parameters = 0;
    TRITONSERVER_Error *error = response ? TRITONSERVER_InferenceResponseError(response) : NULL;
    if (response && error == NULL)
        error = TRITONSERVER_InferenceResponseOutputCount(response, &outputs);
    if (response && error == NULL)
        error = TRITONSERVER_InferenceResponseParameterCount(response, &parameters);
    if (error) {
        TRITONSERVER_Error_Code code = TRITONSERVER_ErrorCode(error);
        const char *name = (unsigned)code < ERROR_CODE_COUNT ? error_code_names[code] : "UNKNOWN";
        if (final)
            call_end(call, TRITONSERVER_ErrorMessage(error), name);
        else
            call_drop(call, TRITONSERVER_ErrorMessage(error), name);
    } else if (outputs || parameters || (response && !call->stream)) {
        send_outputs(call, response, outputs, parameters, final || !call->stream);
    } else if (final) {
        call_end(call, call->stream ? NULL : "the model has not answered", "INTERNAL");
    } /* Otherwise, the response is empty and others follow. */
    if (response)
        triton_error_consume(TRITONSERVER_InferenceResponseDelete(response));
}

/* Returns NULL if there is memory to queue `bytes` more, otherwise the error, for free(). A model with another backend
 * does not slow down when its caller reads slowly.
 */
static char *check_queue_memory(Call *call, uint64_t bytes)
{
    call->unchecked_bytes += bytes;
    if (call->unchecked_bytes < memory_check_interval)
        return NULL;
    call->unchecked_bytes = 0;
    return memory_check(memory_check_interval);
}

static void enqueue(Call *call, TRITONSERVER_InferenceResponse *response, bool final)
{
    uint64_t bytes = response_size(response);
    char *refusal = check_queue_memory(call, bytes);
    QueuedAnswer *queued = refusal ? NULL : malloc(sizeof *queued);
    if (queued == NULL) {
        char *text =
            strdup_printf("its answers arrive faster than they are read: %s", refusal ? refusal : "out of memory");
        if (response)
            triton_error_consume(TRITONSERVER_InferenceResponseDelete(response));
        call_drop(call, text, "UNAVAILABLE");
        free(text);
        free(refusal);
        return;
    }
    *queued = (QueuedAnswer){.response = response, .bytes = bytes, .final = final};
    if (call->flow)
        flow_add_unread(call->flow, bytes);
    *call->queue_tail = queued;
    call->queue_tail = &queued->next;
}

static void on_response(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp)
{
    Call *call = userp;
    bool final = flags & RESPONSE_FINAL, unwanted;
    pthread_mutex_lock(&call->calls->lock);
    unwanted = call->ended;
    if (!unwanted && call->stream && (call->queue_head || call->unread >= MAX_UNREAD))
        enqueue(call, response, final);
    else if (!unwanted)
        forward_response(call, response, final);
    pthread_mutex_unlock(&call->calls->lock);
    if (unwanted && response)
        triton_error_consume(TRITONSERVER_InferenceResponseDelete(response));
    if (final)
        call_unref(call);
}

/* tritonserver's callback after it has read the request's inputs. The request itself is kept while it can still be
 * cancelled.
 */
static void on_request_released(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp)
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
        return (CallError){strdup_printf("not enough memory for outputs"), "INTERNAL"};
    TRITONSERVER_Error *error =
        TRITONSERVER_InferenceRequestSetReleaseCallback(call->request, on_request_released, call);
    if (error == NULL)
        error = TRITONSERVER_InferenceRequestSetResponseCallback(call->request, allocator, call, on_response, call);
    if (error == NULL) {
        __atomic_add_fetch(&call->refs, 2, __ATOMIC_RELAXED);
        error = TRITONSERVER_ServerInferAsync(call->calls->server, call->request, NULL);
        if (error) /* There will be no callback, so drop tritonserver's reference. The caller has another one. */
            __atomic_sub_fetch(&call->refs, 2, __ATOMIC_RELAXED);
    }
    return call_error_from(error);
}

bool call_release_oldest(Call *call, bool *final)
{
    Answer *answer = call->unread_head;
    if (answer == NULL)
        return false;
    call->unread_head = answer->next;
    if (call->unread_head == NULL)
        call->unread_tail = &call->unread_head;
    call->unread--;
    *final = answer->final;
    if (call->flow)
        flow_mark_read(call->flow, answer->bytes);
    call_answer_free(call, answer);
    while (call->queue_head && call->unread < MAX_UNREAD && !call->ended) {
        QueuedAnswer *queued = call->queue_head;
        call->queue_head = queued->next;
        if (call->queue_head == NULL)
            call->queue_tail = &call->queue_head;
        forward_response(call, queued->response, queued->final);
        if (call->flow) /* From now on, it counts as unread instead of as queued. */
            flow_mark_read(call->flow, queued->bytes);
        free(queued);
    }
    return true;
}

void call_discard(Call *call)
{
    call->ended = true;
    if (call->request)
        triton_error_consume(TRITONSERVER_InferenceRequestCancel(call->request));
    if (call->flow)
        flow_end(call->flow);
    discard_queue(call);
    while (call->unread_head) {
        Answer *answer = call->unread_head;
        call->unread_head = answer->next;
        call_answer_free(call, answer);
    }
    call->unread_tail = &call->unread_head;
}

void calls_unref(Calls *calls)
{
    if (__atomic_sub_fetch(&calls->refs, 1, __ATOMIC_ACQ_REL))
        return;
    call_connection_free(calls->connection);
    pthread_mutex_destroy(&calls->lock);
    pthread_mutex_destroy(&calls->slots.lock);
    buffer_free(&calls->reported_models);
    free(calls->worker);
    free(calls->endpoint);
    free(calls->name);
    free(calls);
}

void call_unref(Call *call)
{
    if (__atomic_sub_fetch(&call->refs, 1, __ATOMIC_ACQ_REL))
        return;
    if (call->request)
        triton_error_consume(TRITONSERVER_InferenceRequestDelete(call->request));
    if (call->flow)
        flow_end(call->flow);
    flow_unref(call->flow);
    calls_unref(call->calls);
    free(call->inputs);
    free(call->model);
    free(call);
}
