/* The producer writes outputs into memory that the worker reads. Outputs of streams, which may arrive faster than the
 * worker reads, are copied to such memory when they are sent.
 */
#define _GNU_SOURCE
#include "calls/call_outputs.h"

#include "base/available_memory.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* The memory of an output in tritonserver: a slot, or plain bytes. */
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
        failure = size < memory_check_interval ? NULL : memory_check(2 * size); /* a copy of it is sent */
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
    if (memory && memory->slot) /* otherwise it belongs to the answer, which has been sent */
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

TRITONSERVER_ResponseAllocator *call_outputs_allocator(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_allocator);
    return allocator_instance;
}

void call_answer_free(Call *call, Answer *answer)
{
    while (answer->slots) {
        Slot *slot = answer->slots;
        answer->slots = slot->next;
        slot_release(&call->calls->slots, slot);
    }
    free(answer);
}

/* Returns a slot with a copy of an output that tritonserver had elsewhere. */
static Slot *copy_to_slot(Call *call, const void *bytes, size_t size)
{
    char *failure = NULL;
    Slot *slot = slot_acquire(&call->calls->slots, size, &failure);
    if (slot)
        memcpy(slot->arena.map, bytes, size);
    free(failure);
    return slot;
}

bool call_output_put(
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

uint64_t response_size(TRITONSERVER_InferenceResponse *response)
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
