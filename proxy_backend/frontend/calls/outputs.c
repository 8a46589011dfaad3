#include "calls/outputs.h"

#include "common/blocks.h"
#include "calls/call_internal.h"
#include "net/limits.h"

#include <stdlib.h>

enum { ALIGNED = 64 };

/* The header of each output. It stands alone if the output is in a region of shared memory. */
typedef struct {
    CallState *parts;
    size_t size; /* size including this header */
    bool in_block, in_region;
} Piece;

enum { HEAD = (sizeof(Piece) + ALIGNED - 1) / ALIGNED * ALIGNED };

static Piece *take_from_block(OutputMemory *memory, size_t size)
{
    if (memory->block == NULL || memory->room - memory->used < size)
        return NULL;
    Piece *piece = (Piece *)(void *)(memory->block + memory->used);
    memory->used += size;
    memory->live++;
    return piece;
}

/* Allocate a piece with `size` bytes after its header. Returns NULL with a problem if that exceeds the limit or memory
 * is lacking.
 */
static Piece *take_piece(CallState *parts, const char *name, size_t size, Problem *problem)
{
    OutputMemory *memory = &parts->outputs;
    uint64_t most = calls_settings_of(parts->calls)->output_bytes;
    size_t whole;
    if (__builtin_add_overflow(size, (size_t)(HEAD + ALIGNED - 1), &whole) || size > most ||
        memory->bytes > most - size) {
        refusals_count(REFUSED_OUTPUT_BYTES);
        problem_set(problem, PROBLEM_TOO_LARGE,
            "output '%s' has %zu bytes, but all outputs of a request may have only %llu (output_bytes)", name, size,
            (unsigned long long)most);
        return NULL;
    }
    whole -= whole % ALIGNED;
    Piece *piece = take_from_block(memory, whole);
    bool in_block = piece != NULL;
    if (!in_block)
        piece = block_allocate(whole);
    if (piece == NULL) {
        problem_set(problem, PROBLEM_UNAVAILABLE, "no memory for output '%s' of %zu bytes", name, size);
        return NULL;
    }
    *piece = (Piece){.parts = parts, .size = whole, .in_block = in_block};
    memory->bytes += whole;
    if (memory->bytes > memory->wanted)
        memory->wanted = memory->bytes;
    return piece;
}

static const CallTensor *requested_output(const CallState *parts, const char *name)
{
    for (size_t i = 0; i < parts->call.output_count; i++)
        if (strcmp(parts->call.outputs[i].name, name) == 0)
            return &parts->call.outputs[i];
    return NULL;
}

static bool fits(const CallTensor *asked, const char *name, size_t size, Problem *problem)
{
    return size <= asked->room ? true
                               : problem_set(problem, PROBLEM_INTERNAL,
                                     "shared memory size specified with the request for output '%s' (%llu bytes) "
                                     "should be at least %zu bytes to hold the results",
                                     name, (unsigned long long)asked->room, size);
}

/* The core's callback that allocates an output. It runs in the model's threads, possibly several at a time for one
 * call.
 */
static TRITONSERVER_Error *allocate(TRITONSERVER_ResponseAllocator *allocator, const char *name, size_t size,
    int memory_type, int64_t memory_type_id, void *userp, void **buffer, void **buffer_userp, int *actual_type,
    int64_t *actual_id)
{
    (void)allocator;
    (void)memory_type;
    (void)memory_type_id;
    CallState *parts = userp;
    const CallTensor *asked = requested_output(parts, name);
    SharedRegion *region = asked && asked->classes == 0 ? asked->region : NULL;
    Problem problem = {0};
    *buffer = *buffer_userp = NULL;
    *actual_type = MEMORY_CPU;
    *actual_id = 0;
    if (region && !fits(asked, name, size, &problem))
        return api_error(&problem);
    pthread_mutex_lock(&parts->lock);
    Piece *piece = take_piece(parts, name, region ? 0 : size, &problem);
    pthread_mutex_unlock(&parts->lock);
    if (piece == NULL)
        return api_error(&problem);
    *buffer_userp = piece;
    *buffer = (char *)piece + HEAD;
    if (region) {
        piece->in_region = true;
        *buffer = (char *)shared_region_base(region) + asked->offset;
        *actual_type = shared_region_is_cuda(region) ? MEMORY_GPU : MEMORY_CPU;
        *actual_id = shared_region_device(region);
    }
    return NULL;
}

/* The core's callback that tells a backend beforehand where an output will be. */
static TRITONSERVER_Error *query(TRITONSERVER_ResponseAllocator *allocator, void *userp, const char *name, size_t *size,
    int *memory_type, int64_t *memory_type_id)
{
    (void)allocator;
    (void)size;
    const CallTensor *asked = name ? requested_output(userp, name) : NULL;
    bool cuda = asked && asked->classes == 0 && asked->region && shared_region_is_cuda(asked->region);
    *memory_type = cuda ? MEMORY_GPU : MEMORY_CPU;
    *memory_type_id = cuda ? shared_region_device(asked->region) : 0;
    return NULL;
}

static TRITONSERVER_Error *release(TRITONSERVER_ResponseAllocator *allocator, void *buffer, void *buffer_userp,
    size_t size, int memory_type, int64_t memory_type_id)
{
    (void)allocator;
    (void)buffer;
    (void)size;
    (void)memory_type;
    (void)memory_type_id;
    Piece *piece = buffer_userp;
    if (piece == NULL)
        return NULL;
    CallState *parts = piece->parts;
    OutputMemory *memory = &parts->outputs;
    bool single = !piece->in_block;
    pthread_mutex_lock(&parts->lock);
    memory->bytes -= piece->size;
    if (!single && --memory->live == 0)
        memory->used = 0;
    pthread_mutex_unlock(&parts->lock);
    if (single)
        block_release(piece);
    return NULL;
}

bool outputs_prepare(Server *server, Problem *problem)
{
    pthread_mutex_lock(&server->lock);
    bool made = server->allocator ||
        (api_succeeded(triton.ResponseAllocatorNew(&server->allocator, allocate, release, NULL), problem) &&
            api_succeeded(triton.ResponseAllocatorSetQueryFunction(server->allocator, query), problem));
    pthread_mutex_unlock(&server->lock);
    return made;
}

void outputs_reset(OutputMemory *memory, size_t kept)
{
    size_t wanted = memory->wanted <= kept ? memory->wanted : 0;
    if (memory->room > kept || wanted > memory->room) {
        free(memory->block);
        void *block;
        bool made = wanted && posix_memalign(&block, ALIGNED, wanted) == 0;
        memory->block = made ? block : NULL;
        memory->room = made ? wanted : 0;
    }
    memory->used = memory->wanted = 0;
}

bool outputs_in_region(const void *buffer_userp)
{
    const Piece *piece = buffer_userp;
    return piece && piece->in_region;
}
