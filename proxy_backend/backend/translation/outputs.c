/* Outputs are copied once: from shared memory or the worker's own memory to tritonserver's buffers. Everything that
 * the worker states about them is checked.
 */
#define _GNU_SOURCE
#include "translation/outputs.h"

#include "base/available_memory.h"
#include "base/strings.h"
#include "triton/datatypes.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Maximum size that tritonserver can send over gRPC. It would copy a larger output once more before refusing it. */
static const uint64_t max_grpc_bytes = INT32_MAX;

static const char size_mismatch[] = "has a different size than its shape requires";
static const char copy_error[] = "an output cannot be copied to its device";

bool output_fault(Lane *lane, const char *name, const char *what)
{
    snprintf(lane->fault, sizeof lane->fault, "the worker's output %.60s %s", name ? name : "", what);
    return false;
}

bool output_read(Lane *lane, Reader *reader, bool may_lend, Tensor *tensor)
{
    uint32_t fields = msgpack_get_array(reader);
    uint64_t elements = 1, size;
    tensor->name = strdup_slice(msgpack_get_text(reader));
    Slice datatype = msgpack_get_text(reader);
    for (tensor->datatype = TYPE_COUNT - 1; tensor->datatype > 0; tensor->datatype--)
        if (slice_is(datatype, datatypes[tensor->datatype].name))
            break;
    tensor->dims = msgpack_get_array(reader);
    if (tensor->dims > MAX_DIMS)
        return output_fault(lane, tensor->name, "has too many dimensions");
    for (uint32_t i = 0; i < tensor->dims; i++) {
        tensor->shape[i] = msgpack_get_int(reader);
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(elements, (uint64_t)tensor->shape[i], &elements))
            return output_fault(lane, tensor->name, "has an invalid shape");
    }
    int64_t memory = msgpack_get_int(reader), offset = msgpack_get_int(reader);
    tensor->size = msgpack_get_int(reader);
    msgpack_skip_rest(reader, fields, TENSOR_REF_SIZE);
    if (reader->malformed || tensor->name == NULL || tensor->datatype == TYPE_INVALID)
        return output_fault(lane, tensor->name, "is described in a malformed way");
    tensor->bytes = (const uint8_t *)"";
    if (memory == OWN_MEMORY) {
        if (!may_lend || tensor->datatype == TYPE_BYTES || tensor->size <= 0)
            return output_fault(lane, tensor->name, "is in memory that was not requested");
        tensor->bytes = NULL;
        tensor->address = offset;
    } else if (tensor->size != 0) {
        tensor->bytes = lane_memory(lane, memory, offset, tensor->size);
        if (tensor->bytes == NULL)
            return false;
    }
    /* 0 means that each element has at least 4 bytes; the copy checks the rest. */
    int element = datatypes[tensor->datatype].size;
    tensor->elements = elements;
    if (element ? __builtin_mul_overflow(elements, (uint64_t)element, &size) || (int64_t)size != tensor->size
                : elements > (uint64_t)tensor->size / 4 || (elements == 0 && tensor->size))
        return output_fault(lane, tensor->name, size_mismatch);
    return true;
}

/* Where an output is written to. */
typedef struct {
    void *buffer;
    int memory_type;
} Destination;

/* The buffer that tritonserver provided for an output. It does not provide a second one. */
typedef struct OutputBuffer {
    struct OutputBuffer *next;
    Destination destination;
    char *name;
    int datatype;
    int64_t size;
    uint32_t dims;
    int64_t shape[];
} OutputBuffer;

PartialResponse *partial_response_new(void)
{
    return calloc(1, sizeof(PartialResponse));
}

void partial_response_free(PartialResponse *partial)
{
    for (OutputBuffer *buffer = partial ? partial->buffers : NULL, *next; buffer; buffer = next) {
        next = buffer->next;
        free(buffer->name);
        free(buffer);
    }
    free(partial);
}

/* Remember the buffer of an output. Returns false without memory. */
static bool record_buffer(PartialResponse *partial, const Tensor *tensor, Destination destination)
{
    OutputBuffer *buffer = malloc(sizeof *buffer + tensor->dims * sizeof *buffer->shape);
    char *name = strdup(tensor->name);
    if (buffer == NULL || name == NULL) {
        free(buffer);
        free(name);
        return false;
    }
    *buffer = (OutputBuffer){partial->buffers, destination, name, tensor->datatype, tensor->size, tensor->dims};
    memcpy(buffer->shape, tensor->shape, tensor->dims * sizeof *buffer->shape);
    partial->buffers = buffer;
    /* cppcheck-suppress memleak ; partial_response_free frees it with its buffers */
    return true;
}

static const OutputBuffer *find_buffer(const PartialResponse *partial, const char *name)
{
    const OutputBuffer *buffer = partial ? partial->buffers : NULL;
    while (buffer && strcmp(buffer->name, name) != 0)
        buffer = buffer->next;
    return buffer;
}

static bool buffer_fits(const OutputBuffer *buffer, const Tensor *tensor)
{
    return buffer->datatype == tensor->datatype && buffer->size == tensor->size && buffer->dims == tensor->dims &&
        memcmp(buffer->shape, tensor->shape, buffer->dims * sizeof *buffer->shape) == 0;
}

/* Check that there is memory for an output of a response of `total` bytes. tritonserver's gRPC frontend does not
 * report a failed allocation, but ends the process.
 */
static TRITONSERVER_Error *check_memory(Lane *lane, const Tensor *tensor, uint64_t total)
{
    lane->unchecked_bytes += (uint64_t)tensor->size;
    if (lane->unchecked_bytes < memory_check_interval)
        return NULL;
    lane->unchecked_bytes = 0;
    char *refusal = memory_check((uint64_t)tensor->size + (total < max_grpc_bytes ? total : max_grpc_bytes));
    if (refusal == NULL)
        return NULL;
    char *text =
        strdup_printf("output %s of %ld bytes cannot be passed on: including the copy that is sent over gRPC (whose "
                      "responses are limited to 2 GiB), %s",
            tensor->name, tensor->size, refusal);
    TRITONSERVER_Error *error = TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, text);
    free(text);
    free(refusal);
    return error;
}

static TRITONSERVER_Error *new_destination(
    TRITONBACKEND_Response *response, const Tensor *tensor, Destination *destination)
{
    TRITONBACKEND_Output *output;
    int64_t memory_id = 0;
    TRITONSERVER_Error *error =
        TRITONBACKEND_ResponseOutput(response, &output, tensor->name, tensor->datatype, tensor->shape, tensor->dims);
    if (error == NULL)
        error = TRITONBACKEND_OutputBuffer(
            output, &destination->buffer, (uint64_t)tensor->size, &destination->memory_type, &memory_id);
    return error;
}

/* Copy an output from the worker's own memory. */
static bool read_from_worker(
    Lane *lane, const Tensor *tensor, const Destination *destination, TRITONSERVER_Error **error)
{
    if (destination->memory_type != MEMORY_GPU)
        return lane_read_peer(lane, tensor->name, destination->buffer, tensor->address, tensor->size);
    void *staged = malloc((size_t)tensor->size);
    bool right = staged == NULL || lane_read_peer(lane, tensor->name, staged, tensor->address, tensor->size);
    if (right && (staged == NULL || !tensor_copy(destination->buffer, staged, (size_t)tensor->size, MEMORY_GPU)))
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, copy_error);
    free(staged);
    return right;
}

/* Copy strings, and validate the copy: the worker could change the original after a check. */
static bool copy_strings(Lane *lane, const Tensor *tensor, const Destination *destination, TRITONSERVER_Error **error)
{
    size_t size = (size_t)tensor->size;
    void *staged = destination->memory_type == MEMORY_GPU ? malloc(size) : NULL,
         *copy = staged ? staged : destination->buffer;
    if (destination->memory_type == MEMORY_GPU && staged == NULL) {
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, copy_error);
        return true;
    }
    memcpy(copy, tensor->bytes, size);
    bool right = strings_fill(copy, size, tensor->elements);
    if (right && staged && !tensor_copy(destination->buffer, staged, size, MEMORY_GPU))
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, copy_error);
    free(staged);
    return right || output_fault(lane, tensor->name, size_mismatch);
}

/* Find the buffer for an output: the one already used for a lost worker's answer, or a new one. */
static TRITONSERVER_Error *destination_for(Lane *lane, PartialResponse *partial, TRITONBACKEND_Response *response,
    const Tensor *tensor, uint64_t total, Destination *destination)
{
    const OutputBuffer *buffer = find_buffer(partial, tensor->name);
    if (buffer == NULL) {
        TRITONSERVER_Error *error = check_memory(lane, tensor, total);
        if (error == NULL)
            error = new_destination(response, tensor, destination);
        if (error == NULL && partial && !record_buffer(partial, tensor, *destination))
            error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
        return error;
    }
    *destination = buffer->destination;
    return buffer_fits(buffer, tensor)
        ? NULL
        : TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE,
              "a worker exited while its answer was being read, and the next worker answered with different shapes");
}

bool output_fill(Lane *lane, PartialResponse *partial, TRITONBACKEND_Response *response, const Tensor *tensor,
    uint64_t total, TRITONSERVER_Error **error)
{
    Destination destination = {NULL, MEMORY_CPU};
    *error = destination_for(lane, partial, response, tensor, total, &destination);
    if (*error || tensor->size == 0)
        return true;
    if (tensor->bytes == NULL)
        return read_from_worker(lane, tensor, &destination, error);
    if (tensor->datatype == TYPE_BYTES)
        return copy_strings(lane, tensor, &destination, error);
    if (!tensor_copy(destination.buffer, tensor->bytes, (size_t)tensor->size, destination.memory_type))
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, copy_error);
    return true;
}
