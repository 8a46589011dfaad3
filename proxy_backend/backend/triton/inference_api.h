/* The part of Triton's C API (version 1.33) with which we send requests ourselves, declared from its documentation.
 * See api.h.
 */
#ifndef PYTRITON_BACKEND_TRITON_INFERENCE_API_H
#define PYTRITON_BACKEND_TRITON_INFERENCE_API_H

#include "triton/api.h"

typedef struct TRITONSERVER_InferenceRequest TRITONSERVER_InferenceRequest;
typedef struct TRITONSERVER_InferenceResponse TRITONSERVER_InferenceResponse;
typedef struct TRITONSERVER_ResponseAllocator TRITONSERVER_ResponseAllocator;

/* The flags of TRITONSERVER_ServerModelTransactionProperties. */
enum { ANSWERS_ONCE = 1, ANSWERS_MANY_TIMES = 2 };

typedef TRITONSERVER_Error *(*AllocateResponse)(TRITONSERVER_ResponseAllocator *allocator, const char *output,
    size_t size, int memory_type, int64_t memory_type_id, void *userp, void **buffer, void **buffer_userp,
    int *actual_memory_type, int64_t *actual_memory_type_id);
typedef TRITONSERVER_Error *(*ReleaseBuffer)(TRITONSERVER_ResponseAllocator *allocator, void *buffer,
    void *buffer_userp, size_t size, int memory_type, int64_t memory_type_id);
typedef TRITONSERVER_Error *(*StartResponse)(TRITONSERVER_ResponseAllocator *allocator, void *userp);
typedef void (*RequestReleased)(TRITONSERVER_InferenceRequest *request, const uint32_t flags, void *userp);
/* The callee owns the response, which may be NULL. */
typedef void (*ResponseComplete)(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp);

TRITONSERVER_Error *TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator **allocator, AllocateResponse allocate, ReleaseBuffer release, StartResponse start);

int TRITONSERVER_StringToDataType(const char *name);
const char *TRITONSERVER_DataTypeString(int datatype);
uint32_t TRITONSERVER_DataTypeByteSize(int datatype);

TRITONSERVER_Error *TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server *server, const char *model, int64_t version, uint32_t *flags, void **unused);
/* Takes ownership of the request until its release, except on failure. */
TRITONSERVER_Error *TRITONSERVER_ServerInferAsync(
    TRITONSERVER_Server *server, TRITONSERVER_InferenceRequest *request, TRITONSERVER_InferenceTrace *trace);

TRITONSERVER_Error *TRITONSERVER_InferenceRequestNew(
    TRITONSERVER_InferenceRequest **request, TRITONSERVER_Server *server, const char *model, int64_t version);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest *request);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest *request);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest *request, const char *id);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetFlags(TRITONSERVER_InferenceRequest *request, uint32_t flags);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationId(TRITONSERVER_InferenceRequest *request, uint64_t id);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetCorrelationIdString(
    TRITONSERVER_InferenceRequest *request, const char *id);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetTimeoutMicroseconds(
    TRITONSERVER_InferenceRequest *request, uint64_t timeout_us);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest *request, const char *name, int datatype, const int64_t *shape, uint64_t dims);
/* The bytes must stay valid until the request is released. */
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAppendInputData(TRITONSERVER_InferenceRequest *request,
    const char *name, const void *bytes, size_t size, int memory_type, int64_t memory_type_id);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestAddRequestedOutput(
    TRITONSERVER_InferenceRequest *request, const char *name);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetStringParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, const char *value);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetIntParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, int64_t value);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetBoolParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, bool value);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetDoubleParameter(
    TRITONSERVER_InferenceRequest *request, const char *key, double value);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest *request, RequestReleased released, void *userp);
TRITONSERVER_Error *TRITONSERVER_InferenceRequestSetResponseCallback(TRITONSERVER_InferenceRequest *request,
    TRITONSERVER_ResponseAllocator *allocator, void *allocator_userp, ResponseComplete complete, void *userp);

/* Returns NULL, or an error owned by the response. */
TRITONSERVER_Error *TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse *response);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutputCount(
    TRITONSERVER_InferenceResponse *response, uint32_t *count);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseOutput(TRITONSERVER_InferenceResponse *response, uint32_t index,
    const char **name, int *datatype, const int64_t **shape, uint64_t *dims, const void **bytes, size_t *size,
    int *memory_type, int64_t *memory_type_id, void **buffer_userp);
/* `type` is a TRITONSERVER_ParameterType. The response owns `name` and `value`. */
TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameterCount(
    TRITONSERVER_InferenceResponse *response, uint32_t *count);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseParameter(
    TRITONSERVER_InferenceResponse *response, uint32_t index, const char **name, int *type, const void **value);
TRITONSERVER_Error *TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse *response);

#endif
