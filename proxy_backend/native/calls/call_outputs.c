/* The producer writes outputs into memory that the worker reads. Outputs of streams, which may arrive faster than the
 * worker reads, are copied to such memory when they are sent.
 */
#define _GNU_SOURCE
#include "calls/call_outputs.h"

#include "base/free_memory.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdlib.h>
#include <string.h>

/* The memory of an output in tritonserver: a slot, or plain bytes. */
typedef struct {
    Slots *slots;
    Slot *slot;
    uint8_t *bytes;
} Piece;

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
    if (piece && piece->slot) /* otherwise it belongs to the answer, which has been sent */
        slot_give_back(piece->slots, piece->slot);
    if (piece)
        free(piece->bytes);
    free(piece);
    return NULL;
}

static TRITONSERVER_ResponseAllocator *made;

static void make(void)
{
    failed(TRITONSERVER_ResponseAllocatorNew(&made, allocate, release_buffer, NULL));
}

TRITONSERVER_ResponseAllocator *call_outputs_allocator(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make);
    return made;
}

void free_answer(Call *call, Answer *answer)
{
    while (answer->slots) {
        Slot *slot = answer->slots;
        answer->slots = slot->next;
        slot_give_back(&call->calls->slots, slot);
    }
    free(answer);
}

/* Returns a slot with a copy of an output that tritonserver had elsewhere. */
static Slot *copied_slot(Call *call, const void *bytes, size_t size)
{
    char *failure = NULL;
    Slot *slot = slot_take(&call->calls->slots, size, &failure);
    if (slot)
        memcpy(slot->arena.map, bytes, size);
    free(failure);
    return slot;
}

bool put_output(Call *call, TRITONSERVER_InferenceResponse *response, uint32_t index, Answer *answer, Buffer *message)
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

uint64_t bytes_of(TRITONSERVER_InferenceResponse *response)
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
