/* Outputs are copied once, from shared memory or the worker's own memory to tritonserver's buffers. Everything that
 * the worker says about them is checked.
 */
#define _GNU_SOURCE
#include "translation/outputs.h"

#include "base/free_memory.h"
#include "base/text.h"
#include "triton/datatypes.h"
#include "triton/errors.h"
#include "wire/protocol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The maximum size that tritonserver can send over gRPC. It copies such an output once more, and refuses a larger one
 * before that.
 */
static const uint64_t most_by_grpc = INT32_MAX;

static const char other_size[] = "has a different size than its shape requires";
static const char no_copy[] = "an output cannot be copied to the device it is wanted on";

bool output_wrong(Lane *lane, const char *name, const char *what)
{
    snprintf(lane->fault, sizeof lane->fault, "the worker's output %.60s %s", name ? name : "", what);
    return false;
}

bool output_get(Lane *lane, Reader *reader, bool may_lend, Tensor *tensor)
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
        return output_wrong(lane, tensor->name, "has too many dimensions");
    for (uint32_t i = 0; i < tensor->dims; i++) {
        tensor->shape[i] = get_int(reader);
        if (tensor->shape[i] < 0 || __builtin_mul_overflow(elements, (uint64_t)tensor->shape[i], &elements))
            return output_wrong(lane, tensor->name, "has an impossible shape");
    }
    int64_t memory = get_int(reader), offset = get_int(reader);
    tensor->size = get_int(reader);
    skip_rest(reader, fields, TENSOR_REF_SIZE);
    if (reader->malformed || tensor->name == NULL || tensor->datatype == TYPE_INVALID)
        return output_wrong(lane, tensor->name, "is described in a malformed way");
    tensor->bytes = (const uint8_t *)"";
    if (memory == OWN_MEMORY) {
        if (!may_lend || tensor->datatype == TYPE_BYTES || tensor->size <= 0)
            return output_wrong(lane, tensor->name, "lies where it was not asked for");
        tensor->bytes = NULL;
        tensor->address = offset;
    } else if (tensor->size != 0) {
        tensor->bytes = lane_memory(lane, memory, offset, tensor->size);
        if (tensor->bytes == NULL)
            return false;
    }
    int element = datatypes[tensor->datatype].size; /* 0: each element has at least 4 bytes; the copy checks the rest */
    tensor->elements = elements;
    if (element ? __builtin_mul_overflow(elements, (uint64_t)element, &size) || (int64_t)size != tensor->size
                : elements > (uint64_t)tensor->size / 4 || (elements == 0 && tensor->size))
        return output_wrong(lane, tensor->name, other_size);
    return true;
}

/* The destination of an output. */
typedef struct {
    void *buffer;
    int memory_type;
} Place;

/* The buffer of an output: tritonserver does not provide a second one. */
typedef struct Made {
    struct Made *next;
    Place place;
    char *name;
    int datatype;
    int64_t size;
    uint32_t dims;
    int64_t shape[];
} Made;

Unfinished *unfinished_new(void)
{
    return calloc(1, sizeof(Unfinished));
}

void unfinished_free(Unfinished *unfinished)
{
    for (Made *made = unfinished ? unfinished->made : NULL, *next; made; made = next) {
        next = made->next;
        free(made->name);
        free(made);
    }
    free(unfinished);
}

/* Remember a buffer. Returns false without memory. */
static bool remember(Unfinished *unfinished, const Tensor *tensor, Place place)
{
    Made *made = malloc(sizeof *made + tensor->dims * sizeof *made->shape);
    char *name = strdup(tensor->name);
    if (made == NULL || name == NULL) {
        free(made);
        free(name);
        return false;
    }
    *made = (Made){unfinished->made, place, name, tensor->datatype, tensor->size, tensor->dims};
    memcpy(made->shape, tensor->shape, tensor->dims * sizeof *made->shape);
    unfinished->made = made;
    /* cppcheck-suppress memleak ; unfinished_free frees it with its place */
    return true;
}

static const Made *find(const Unfinished *unfinished, const char *name)
{
    const Made *made = unfinished ? unfinished->made : NULL;
    while (made && strcmp(made->name, name) != 0)
        made = made->next;
    return made;
}

static bool is_alike(const Made *made, const Tensor *tensor)
{
    return made->datatype == tensor->datatype && made->size == tensor->size && made->dims == tensor->dims &&
        memcmp(made->shape, tensor->shape, made->dims * sizeof *made->shape) == 0;
}

/* Check that tritonserver has memory for an output of a response of `total` bytes. Its gRPC frontend does not report
 * a failed allocation: it ends the process.
 */
static TRITONSERVER_Error *no_room(Lane *lane, const Tensor *tensor, uint64_t total)
{
    lane->unlooked += (uint64_t)tensor->size;
    if (lane->unlooked < worth_a_look)
        return NULL;
    lane->unlooked = 0;
    char *refusal = memory_refused((uint64_t)tensor->size + (total < most_by_grpc ? total : most_by_grpc));
    if (refusal == NULL)
        return NULL;
    char *text = texted("output %s of %ld bytes cannot be passed on: with the copy that is sent over gRPC (which takes "
                        "no response of more than 2 GiB), %s",
        tensor->name, tensor->size, refusal);
    TRITONSERVER_Error *error = TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE, text);
    free(text);
    free(refusal);
    return error;
}

static TRITONSERVER_Error *new_place(TRITONBACKEND_Response *response, const Tensor *tensor, Place *place)
{
    TRITONBACKEND_Output *output;
    int64_t memory_id = 0;
    TRITONSERVER_Error *error =
        TRITONBACKEND_ResponseOutput(response, &output, tensor->name, tensor->datatype, tensor->shape, tensor->dims);
    if (error == NULL)
        error =
            TRITONBACKEND_OutputBuffer(output, &place->buffer, (uint64_t)tensor->size, &place->memory_type, &memory_id);
    return error;
}

/* Read an output from the worker's own memory. */
static bool read_into(Lane *lane, const Tensor *tensor, const Place *place, TRITONSERVER_Error **error)
{
    if (place->memory_type != MEMORY_GPU)
        return lane_read(lane, tensor->name, place->buffer, tensor->address, tensor->size);
    void *staged = malloc((size_t)tensor->size);
    bool right = staged == NULL || lane_read(lane, tensor->name, staged, tensor->address, tensor->size);
    if (right && (staged == NULL || !copied(place->buffer, staged, (size_t)tensor->size, MEMORY_GPU)))
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, no_copy);
    free(staged);
    return right;
}

/* Copy strings and validate the copy: the worker could change the original after the check. */
static bool copy_strings(Lane *lane, const Tensor *tensor, const Place *place, TRITONSERVER_Error **error)
{
    size_t size = (size_t)tensor->size;
    void *staged = place->memory_type == MEMORY_GPU ? malloc(size) : NULL, *copy = staged ? staged : place->buffer;
    if (place->memory_type == MEMORY_GPU && staged == NULL) {
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, no_copy);
        return true;
    }
    memcpy(copy, tensor->bytes, size);
    bool right = are_strings(copy, size, tensor->elements);
    if (right && staged && !copied(place->buffer, staged, size, MEMORY_GPU))
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, no_copy);
    free(staged);
    return right || output_wrong(lane, tensor->name, other_size);
}

/* Returns the buffer for an output: the one already used for a lost worker's answer, or a new one. */
static TRITONSERVER_Error *place_for(Lane *lane, Unfinished *unfinished, TRITONBACKEND_Response *response,
    const Tensor *tensor, uint64_t total, Place *place)
{
    const Made *made = find(unfinished, tensor->name);
    if (made == NULL) {
        TRITONSERVER_Error *error = no_room(lane, tensor, total);
        if (error == NULL)
            error = new_place(response, tensor, place);
        if (error == NULL && unfinished && !remember(unfinished, tensor, *place))
            error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, "out of memory");
        return error;
    }
    *place = made->place;
    return is_alike(made, tensor)
        ? NULL
        : TRITONSERVER_ErrorNew(ERROR_UNAVAILABLE,
              "a worker ended while its answer was read, and the next one answered with other shapes");
}

bool output_fill(Lane *lane, Unfinished *unfinished, TRITONBACKEND_Response *response, const Tensor *tensor,
    uint64_t total, TRITONSERVER_Error **error)
{
    Place place = {NULL, MEMORY_CPU};
    *error = place_for(lane, unfinished, response, tensor, total, &place);
    if (*error || tensor->size == 0)
        return true;
    if (tensor->bytes == NULL)
        return read_into(lane, tensor, &place, error);
    if (tensor->datatype == TYPE_BYTES)
        return copy_strings(lane, tensor, &place, error);
    if (!copied(place.buffer, tensor->bytes, (size_t)tensor->size, place.memory_type))
        *error = TRITONSERVER_ErrorNew(ERROR_INTERNAL, no_copy);
    return true;
}
