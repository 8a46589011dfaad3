/* Endpoints for clients' shared memory: status, registration and unregistration of regions. */
#include "calls/shared_memory.h"

#include "http/request.h"
#include "json/reader.h"
#include "common/json_writer.h"

static const char parsing[] = "failed to parse the request JSON buffer";

static SharedMemory *regions_of(const HttpRequest *request)
{
    return request->service->settings.shared_memory;
}

/* ── status ───────────────────────────────────────────────────────────────────────────────────────── */

static void put_common(Buffer *text, const SharedRegionStatus *status)
{
    if (text->data[text->size - 1] == '}')
        buffer_put_char(text, ',');
    buffer_put_string(text, "{\"name\":");
    json_put_sanitized(text, status->name);
}

static void put_system(void *user, const SharedRegionStatus *status)
{
    Buffer *text = user;
    put_common(text, status);
    buffer_put_string(text, ",\"key\":");
    json_put_sanitized(text, status->key);
    buffer_format(text, ",\"offset\":%llu,\"byte_size\":%llu}", (unsigned long long)status->offset,
        (unsigned long long)status->size);
}

static void put_gpu(void *user, const SharedRegionStatus *status)
{
    Buffer *text = user;
    put_common(text, status);
    buffer_format(
        text, ",\"device_id\":%lld,\"byte_size\":%llu}", (long long)status->device, (unsigned long long)status->size);
}

static bool respond_status(HttpRequest *request, bool gpu, Problem *problem)
{
    Call *call = request->call;
    if (!response_begin(call, problem))
        return false;
    buffer_put_char(&call->reply, '[');
    if (!shared_memory_status(
            regions_of(request), gpu, request->name, gpu ? put_gpu : put_system, &call->reply, problem))
        return false;
    buffer_put_char(&call->reply, ']');
    response_send(call, 200, TYPE_JSON, NULL, 0, 0);
    return true;
}

bool http_handle_region_status(HttpRequest *request, Problem *problem)
{
    return respond_status(request, false, problem);
}

bool http_handle_gpu_status(HttpRequest *request, Problem *problem)
{
    return respond_status(request, true, problem);
}

/* ── registering ──────────────────────────────────────────────────────────────────────────────────── */

/* The contents of a registration request. */
typedef struct {
    bool has_key, has_size, has_handle, has_device;
    Buffer key, handle;
    uint64_t offset, size;
    int64_t device;
} Registration;

/* Read "raw_handle": {"b64": "..."}. */
static void read_handle(Json *json, Registration *registration, Problem *problem)
{
    Buffer scratch = {0};
    Slice key;
    if (!json_object(json)) {
        if (!json_failed(json))
            problem_set(problem, PROBLEM_INVALID, "'raw_handle' is not a JSON object");
        return;
    }
    while (problem->kind == PROBLEM_NONE && json_member(json, &scratch, &key)) {
        if (slice_is(key, "b64"))
            registration->has_handle = json_string_to(json, &registration->handle);
        else
            json_skip(json);
        if (slice_is(key, "b64") && !registration->has_handle && !json_failed(json))
            problem_set(problem, PROBLEM_INVALID, "'b64' of 'raw_handle' is not a string");
    }
    buffer_free(&scratch);
}

static void read_member(Json *json, Slice key, Registration *registration, Problem *problem)
{
    bool read = true;
    if (slice_is(key, "key"))
        read = registration->has_key = json_string_to(json, &registration->key);
    else if (slice_is(key, "offset"))
        read = json_unsigned(json, &registration->offset);
    else if (slice_is(key, "byte_size"))
        read = registration->has_size = json_unsigned(json, &registration->size);
    else if (slice_is(key, "device_id"))
        read = registration->has_device = json_signed(json, &registration->device);
    else if (slice_is(key, "raw_handle"))
        read_handle(json, registration, problem);
    else
        json_skip(json);
    if (!read && !json_failed(json))
        problem_set(problem, PROBLEM_INVALID, "Unable to parse '%.*s': it has the wrong type", SLICE_ARGS(key));
}

static bool read_registration(const HttpRequest *request, Registration *registration, Problem *problem)
{
    JsonLimits most = {(uint32_t)request->limits->json_depth, request->limits->json_values, UINT64_MAX};
    Json json = json_read(request->body, &most);
    Buffer scratch = {0};
    Slice key;
    if (!json_object(&json) && !json_failed(&json))
        return problem_set(problem, PROBLEM_INVALID, "the request's body is not a JSON object");
    while (problem->kind == PROBLEM_NONE && json_member(&json, &scratch, &key))
        read_member(&json, key, registration, problem);
    buffer_free(&scratch);
    if (problem->kind == PROBLEM_NONE && !json_end(&json))
        json_problem(&json, parsing, problem);
    return problem->kind == PROBLEM_NONE;
}

static bool missing(const char *field, Problem *problem)
{
    return problem_set(problem, PROBLEM_INVALID, "Shared memory register request has no '%s' field", field);
}

static bool register_region(HttpRequest *request, Registration *registration, Problem *problem)
{
    if (!registration->has_key)
        return missing("key", problem);
    if (!registration->has_size)
        return missing("byte_size", problem);
    return shared_memory_register(regions_of(request), request->name, buffer_slice(&registration->key),
        registration->offset, registration->size, problem);
}

static bool register_gpu(HttpRequest *request, Registration *registration, Problem *problem)
{
    if (!registration->has_handle)
        return missing("raw_handle/b64", problem);
    if (!registration->has_device)
        return missing("device_id", problem);
    if (!registration->has_size)
        return missing("byte_size", problem);
    size_t size;
    if (!base64_decode(registration->handle.data, registration->handle.size, &size))
        return problem_set(problem, PROBLEM_INVALID, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t");
    return shared_memory_register_cuda(regions_of(request), request->name, (Slice){registration->handle.data, size},
        registration->device, registration->size, problem);
}

static bool respond_register(HttpRequest *request, bool gpu, Problem *problem)
{
    Registration registration = {0};
    bool done = read_registration(request, &registration, problem);
    if (done)
        done = gpu ? register_gpu(request, &registration, problem) : register_region(request, &registration, problem);
    buffer_free(&registration.key);
    buffer_free(&registration.handle);
    if (done)
        response_send_text(request->call, 200, TYPE_JSON, SLICE(""));
    return done;
}

bool http_handle_region_register(HttpRequest *request, Problem *problem)
{
    return respond_register(request, false, problem);
}

bool http_handle_gpu_register(HttpRequest *request, Problem *problem)
{
    return respond_register(request, true, problem);
}

static bool respond_unregister(HttpRequest *request, bool gpu, Problem *problem)
{
    if (!shared_memory_unregister(regions_of(request), gpu, request->name, problem))
        return false;
    response_send_text(request->call, 200, TYPE_JSON, SLICE(""));
    return true;
}

bool http_handle_region_unregister(HttpRequest *request, Problem *problem)
{
    return respond_unregister(request, false, problem);
}

bool http_handle_gpu_unregister(HttpRequest *request, Problem *problem)
{
    return respond_unregister(request, true, problem);
}
