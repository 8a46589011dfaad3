/* The requests, as the calls fill them in. */
#include "fake_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

void core_check(const TRITONSERVER_InferenceRequest *request, const char *doing)
{
    if (request->alive == ALIVE)
        return;
    fprintf(stderr, "%s: the request is gone\n", doing);
    abort();
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestNew(
    TRITONSERVER_InferenceRequest **request, TRITONSERVER_Server *server, const char *model, int64_t version)
{
    (void)server;
    (void)version;
    *request = calloc(1, sizeof **request);
    (*request)->alive = ALIVE;
    (*request)->model = strdup(model);
    (*request)->responses = 1;
    (*request)->script = -1;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest *request)
{
    core_check(request, "deleting");
    request->alive = 0;
    for (size_t i = 0; i < request->input_count; i++) {
        free(request->inputs[i].name);
        free(request->inputs[i].bytes);
    }
    free(request->model);
    free(request->id);
    free(request);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest *request, const char *id)
{
    free(request->id);
    request->id = strdup(id);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest *request)
{
    core_check(request, "cancelling");
    pthread_mutex_lock(&core_lock);
    request->cancelled = true;
    if (request->script >= 0)
        shutdown(request->script, SHUT_RDWR);
    pthread_cond_broadcast(&core_changed);
    pthread_mutex_unlock(&core_lock);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetIntParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, int64_t value)
{
    if (strcmp(key, "answers") == 0)
        request->responses = value;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest *request, const char *name, int datatype, const int64_t *shape, uint64_t dims)
{
    if (request->input_count == TENSORS || dims > DIMS)
        return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "too much for this core");
    for (size_t i = 0; i < request->input_count; i++)
        if (strcmp(request->inputs[i].name, name) == 0)
            return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "input already exists in request");
    Tensor *input = &request->inputs[request->input_count++];
    *input = (Tensor){.name = strdup(name), .datatype = datatype, .dims = dims};
    memcpy(input->shape, shape, dims * sizeof *shape);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest *request, const char *name)
{
    int64_t shape[] = {1};
    return TRITONSERVER_InferenceRequestAddInput(request, name, TYPE_UINT8, shape, 1);
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest *request,
    const char *name, const void *bytes, size_t size, int memory_type, int64_t memory_type_id)
{
    (void)name;
    (void)memory_type;
    (void)memory_type_id;
    Tensor *input = &request->inputs[request->input_count - 1];
    if (input->piece_count == TENSORS)
        return TRITONSERVER_ErrorNew(TRITON_ERROR_INVALID_ARG, "too many pieces for this core");
    input->pieces[input->piece_count] = bytes;
    input->sizes[input->piece_count++] = size;
    input->size += size;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest *request, RequestReleased released, void *userp)
{
    request->released = released;
    request->release_userp = userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(TRITONSERVER_InferenceRequest *request,
    TRITONSERVER_ResponseAllocator *allocator, void *allocator_userp, ResponseComplete complete, void *userp)
{
    request->allocator = allocator;
    request->allocator_userp = allocator_userp;
    request->complete = complete;
    request->userp = userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator **allocator, AllocateOutput allocate, ReleaseOutput release, StartResponse start)
{
    (void)start;
    *allocator = malloc(sizeof **allocator);
    **allocator = (TRITONSERVER_ResponseAllocator){allocate, release};
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator *allocator)
{
    free(allocator);
    return NULL;
}
