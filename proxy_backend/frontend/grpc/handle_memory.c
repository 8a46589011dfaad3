#include "grpc/method_handlers.h"

typedef struct {
    const ProtoMessage *response;
    Buffer *to;
} StatusList;

static void put_system_status(void *user, const SharedRegionStatus *status)
{
    StatusList *list = user;
    size_t entry = proto_begin(list->to, SYSTEM_SHARED_MEMORY_STATUS_RESPONSE_regions);
    proto_put_bytes(list->to, 1, status->name);
    size_t region = proto_begin(list->to, 2);
    proto_put_bytes(list->to, SYSTEM_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_name, status->name);
    proto_put_bytes(list->to, SYSTEM_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_key, status->key);
    proto_put_number(list->to, SYSTEM_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_offset, status->offset);
    proto_put_number(list->to, SYSTEM_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_byte_size, status->size);
    proto_end(list->to, region);
    proto_end(list->to, entry);
}

static void put_cuda_status(void *user, const SharedRegionStatus *status)
{
    StatusList *list = user;
    size_t entry = proto_begin(list->to, CUDA_SHARED_MEMORY_STATUS_RESPONSE_regions);
    proto_put_bytes(list->to, 1, status->name);
    size_t region = proto_begin(list->to, 2);
    proto_put_bytes(list->to, CUDA_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_name, status->name);
    proto_put_number(list->to, CUDA_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_device_id, (uint64_t)status->device);
    proto_put_number(list->to, CUDA_SHARED_MEMORY_STATUS_RESPONSE_REGION_STATUS_byte_size, status->size);
    proto_end(list->to, region);
    proto_end(list->to, entry);
}

static bool status(
    const GrpcService *service, const GrpcMethod *method, Slice request, bool cuda, Buffer *response, Problem *problem)
{
    Slice name = {0};
    const RequestField wanted[] = {{1, &name, NULL}};
    StatusList list = {method->response, response};
    return read_request_fields(method->request, request, wanted, 1, problem) &&
        shared_memory_status(
            service->shared_memory, cuda, name, cuda ? put_cuda_status : put_system_status, &list, problem);
}

bool handle_system_status(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    return status(service, method, request, false, response, problem);
}

bool handle_cuda_status(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    return status(service, method, request, true, response, problem);
}

bool handle_system_register(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Slice name = {0}, key = {0};
    uint64_t offset = 0, size = 0;
    const RequestField wanted[] = {{SYSTEM_SHARED_MEMORY_REGISTER_REQUEST_name, &name, NULL},
        {SYSTEM_SHARED_MEMORY_REGISTER_REQUEST_key, &key, NULL},
        {SYSTEM_SHARED_MEMORY_REGISTER_REQUEST_offset, NULL, &offset},
        {SYSTEM_SHARED_MEMORY_REGISTER_REQUEST_byte_size, NULL, &size}};
    (void)response;
    return read_request_fields(method->request, request, wanted, 4, problem) &&
        shared_memory_register(service->shared_memory, name, key, offset, size, problem);
}

bool handle_cuda_register(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Slice name = {0}, handle = {0};
    uint64_t device = 0, size = 0;
    const RequestField wanted[] = {{CUDA_SHARED_MEMORY_REGISTER_REQUEST_name, &name, NULL},
        {CUDA_SHARED_MEMORY_REGISTER_REQUEST_raw_handle, &handle, NULL},
        {CUDA_SHARED_MEMORY_REGISTER_REQUEST_device_id, NULL, &device},
        {CUDA_SHARED_MEMORY_REGISTER_REQUEST_byte_size, NULL, &size}};
    (void)response;
    return read_request_fields(method->request, request, wanted, 4, problem) &&
        shared_memory_register_cuda(service->shared_memory, name, handle, (int64_t)device, size, problem);
}

static bool unregister(const GrpcService *service, const GrpcMethod *method, Slice request, bool cuda, Problem *problem)
{
    Slice name = {0};
    const RequestField wanted[] = {{1, &name, NULL}};
    return read_request_fields(method->request, request, wanted, 1, problem) &&
        shared_memory_unregister(service->shared_memory, cuda, name, problem);
}

bool handle_system_unregister(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    (void)response;
    return unregister(service, method, request, false, problem);
}

bool handle_cuda_unregister(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    (void)response;
    return unregister(service, method, request, true, problem);
}
