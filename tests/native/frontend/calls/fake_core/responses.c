/* The responses: each output is an input again. */
#include "fake_core.h"

#include <stdio.h>
#include <stdlib.h>

static TRITONSERVER_Error *add_output(
    const TRITONSERVER_InferenceRequest *request, TRITONSERVER_InferenceResponse *response, const Tensor *input)
{
    int memory;
    int64_t device;
    void *buffer;
    Tensor output = *input;
    char name[64];
    bool odd = strcmp(request->model, "odd") == 0;
    snprintf(name, sizeof name, odd ? "\xff%s" : "OUT%s", input->name);
    output.size = strcmp(request->model, "huge") == 0 ? (size_t)1 << 40 : input->size;
    TRITONSERVER_Error *error = request->allocator->allocate(request->allocator, name, output.size, MEMORY_CPU, 0,
        request->allocator_userp, &buffer, &output.userp, &memory, &device);
    if (error)
        return error;
    output.name = strdup(name);
    output.bytes = buffer;
    for (size_t i = 0; i < input->piece_count; i++) {
        memcpy(buffer, input->pieces[i], input->sizes[i]);
        buffer = (char *)buffer + input->sizes[i];
    }
    if (strcmp(request->model, "short") == 0)
        output.shape[0] = INT64_MAX;
    response->outputs[response->output_count++] = output;
    return NULL;
}

TRITONSERVER_InferenceResponse *core_respond(const TRITONSERVER_InferenceRequest *request)
{
    TRITONSERVER_InferenceResponse *response = calloc(1, sizeof *response);
    response->model = strdup(request->model);
    response->id = strdup(request->id ? request->id : "");
    response->allocator = request->allocator;
    if (strcmp(request->model, "failing") == 0) {
        char text[512];
        snprintf(text, sizeof text, "not today%s", response->id);
        response->error = TRITONSERVER_ErrorNew(TRITON_ERROR_INTERNAL, text);
    }
    if (strcmp(request->model, "held") == 0)
        response->error = TRITONSERVER_ErrorNew(TRITON_ERROR_CANCELLED, "cancelled");
    for (size_t i = 0; response->error == NULL && i < request->input_count; i++)
        response->error = add_output(request, response, &request->inputs[i]);
    return response;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse *response)
{
    for (size_t i = 0; i < response->output_count; i++) {
        Tensor *output = &response->outputs[i];
        response->allocator->release(response->allocator, output->bytes, output->userp, output->size, MEMORY_CPU, 0);
        free(output->name);
    }
    if (response->error)
        TRITONSERVER_ErrorDelete(response->error);
    free(response->model);
    free(response->id);
    free(response);
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse *response)
{
    return response->error;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseModel(
    TRITONSERVER_InferenceResponse *response, const char **model, int64_t *version)
{
    *model = response->model;
    *version = 1;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse *response, const char **id)
{
    *id = response->id;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameterCount(
    TRITONSERVER_InferenceResponse *response, uint32_t *count)
{
    *count = strcmp(response->model, "odd") == 0;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameter(
    TRITONSERVER_InferenceResponse *response, uint32_t index, const char **name, int *type, const void **value)
{
    (void)response;
    (void)index;
    *name = "odd";
    *type = PARAMETER_STRING;
    *value = "\xc3(\xff";
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputCount(TRITONSERVER_InferenceResponse *response, uint32_t *count)
{
    *count = (uint32_t)response->output_count;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse *response, uint32_t index,
    const char **name, int *datatype, const int64_t **shape, uint64_t *dims, const void **bytes, size_t *size,
    int *memory_type, int64_t *memory_type_id, void **buffer_userp)
{
    const Tensor *output = &response->outputs[index];
    *name = output->name;
    *datatype = output->datatype;
    *shape = output->shape;
    *dims = output->dims;
    *bytes = output->bytes;
    *size = output->size;
    *memory_type = MEMORY_CPU;
    *memory_type_id = 0;
    *buffer_userp = output->userp;
    return NULL;
}

TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputClassificationLabel(
    TRITONSERVER_InferenceResponse *response, uint32_t index, size_t class_index, const char **label)
{
    static const char *const labels[] = {"cat", "dog"};
    (void)response;
    (void)index;
    *label = class_index < sizeof labels / sizeof *labels ? labels[class_index] : NULL;
    return NULL;
}
