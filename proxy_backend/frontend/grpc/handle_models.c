#include "admin/information.h"
#include "admin/repository.h"
#include "protobuf/json_message.h"
#include "grpc/method_handlers.h"

#include <stdlib.h>

enum { MAX_PARAMETERS = 256 };

bool read_request_fields(
    const ProtoMessage *message, Slice request, const RequestField *wanted, size_t count, Problem *problem)
{
    ProtoReader reader = proto_reader(message, request);
    ProtoValue value;
    ProtoNext next;
    for (size_t i = 0; i < count; i++)
        if (wanted[i].text)
            *wanted[i].text = SLICE("");
        else
            *wanted[i].value = 0;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND)
        for (size_t i = 0; i < count; i++) {
            if (wanted[i].number != value.field->number)
                continue;
            if (wanted[i].text)
                *wanted[i].text = value.bytes;
            else
                *wanted[i].value = value.number;
        }
    return next == PROTO_END;
}

static void put_flag(Buffer *response, bool flag)
{
    if (flag)
        proto_put_number(response, 1, 1);
}

bool handle_server_live(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    (void)method;
    (void)request;
    (void)problem;
    put_flag(response, server_is_live(service->server));
    return true;
}

bool handle_server_ready(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    (void)method;
    (void)request;
    (void)problem;
    put_flag(response, server_is_ready(service->server));
    return true;
}

/* Read the name and the version, which most requests have. */
static bool read_model(const GrpcMethod *method, Slice request, Slice *name, Slice *version, Problem *problem)
{
    const RequestField wanted[] = {{1, name, NULL}, {2, version, NULL}};
    return read_request_fields(method->request, request, wanted, 2, problem);
}

bool handle_model_ready(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Slice name = {0}, version = {0};
    bool ready;
    if (!read_model(method, request, &name, &version, problem) ||
        !server_model_is_ready(service->server, name, version, &ready, problem))
        return false;
    put_flag(response, ready);
    return true;
}

/* Convert the core's JSON to an answer, unless reading it failed. */
static bool put_json(bool fine, Buffer *json, const ProtoMessage *message, Buffer *response, Problem *problem)
{
    if (fine) {
        Json reader = json_of_core(buffer_slice(json));
        fine = message_from_json(&reader, message, response, problem);
    }
    buffer_free(json);
    return fine;
}

bool handle_server_metadata(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Buffer json = {0};
    (void)request;
    return put_json(server_information(service->server, &json, problem), &json, method->response, response, problem);
}

typedef bool Query(Server *server, Slice model, Slice version, Buffer *json, Problem *problem);

static bool query(const GrpcService *service, const GrpcMethod *method, Slice request, Query *information, Buffer *json,
    Problem *problem)
{
    Slice name = {0}, version = {0};
    return read_model(method, request, &name, &version, problem) &&
        information(service->server, name, version, json, problem);
}

bool handle_model_metadata(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Buffer json = {0};
    return put_json(
        query(service, method, request, model_information, &json, problem), &json, method->response, response, problem);
}

bool handle_model_statistics(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Buffer json = {0};
    return put_json(
        query(service, method, request, model_statistics, &json, problem), &json, method->response, response, problem);
}

bool handle_model_config(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Buffer json = {0};
    bool fine = query(service, method, request, model_configuration, &json, problem);
    size_t begun = proto_begin(response, MODEL_CONFIG_RESPONSE_config);
    fine = put_json(fine, &json, &MODEL_CONFIG, response, problem);
    proto_end(response, begun);
    return fine;
}

bool handle_repository_index(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    Buffer json = {0};
    Slice repository = {0};
    uint64_t ready = 0;
    const RequestField wanted[] = {
        {REPOSITORY_INDEX_REQUEST_repository_name, &repository, NULL}, {REPOSITORY_INDEX_REQUEST_ready, NULL, &ready}};
    bool fine = read_request_fields(method->request, request, wanted, 2, problem) &&
        repository_index(service->server, repository, ready != 0, &json, problem);
    if (fine) {
        Json reader = json_of_core(buffer_slice(&json));
        const ProtoMessage *model = proto_field(method->response, REPOSITORY_INDEX_RESPONSE_models)->message;
        fine = json_array(&reader) || problem_set(problem, PROBLEM_INTERNAL, "tritonserver's index is not an array");
        while (fine && json_element(&reader)) {
            size_t begun = proto_begin(response, REPOSITORY_INDEX_RESPONSE_models);
            fine = message_from_json(&reader, model, response, problem);
            proto_end(response, begun);
        }
    }
    buffer_free(&json);
    return fine;
}

/* Read an entry of the parameters of a load or unload request. PARAMETER_INT stands for all unsupported types. */
static bool read_load_parameter(
    const ProtoMessage *entry, Slice bytes, LoadParameter *parameter, bool *flag, Problem *problem)
{
    Slice name = {0}, message = {0};
    const RequestField pair[] = {{1, &name, NULL}, {2, &message, NULL}};
    if (!read_request_fields(entry, bytes, pair, 2, problem))
        return false;
    ProtoReader reader = proto_reader(&MODEL_REPOSITORY_PARAMETER, message);
    ProtoValue value;
    ProtoNext next;
    *parameter = (LoadParameter){.name = name, .type = PARAMETER_INT};
    *flag = false;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        uint32_t number = value.field->number;
        parameter->type = number == MODEL_REPOSITORY_PARAMETER_string_param ? PARAMETER_STRING
            : number == MODEL_REPOSITORY_PARAMETER_bytes_param              ? PARAMETER_BYTES
            : number == MODEL_REPOSITORY_PARAMETER_bool_param               ? PARAMETER_BOOL
                                                                            : PARAMETER_INT;
        if (parameter->type == PARAMETER_BOOL)
            *flag = value.number != 0;
        else if (parameter->type != PARAMETER_INT)
            parameter->value = value.bytes;
    }
    return next == PROTO_END;
}

bool handle_load(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    LoadParameter *parameters = calloc(MAX_PARAMETERS, sizeof *parameters);
    ProtoReader reader = proto_reader(method->request, request);
    Slice repository = SLICE(""), model = SLICE("");
    ProtoValue value;
    ProtoNext next = PROTO_END;
    size_t count = 0;
    bool fine = parameters || problem_no_memory(problem), flag;
    (void)response;
    while (parameters && fine && (next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == REPOSITORY_MODEL_LOAD_REQUEST_repository_name)
            repository = value.bytes;
        else if (value.field->number == REPOSITORY_MODEL_LOAD_REQUEST_model_name)
            model = value.bytes;
        else if (count == MAX_PARAMETERS)
            fine = problem_set(
                problem, PROBLEM_TOO_LARGE, "a load request can have at most %d parameters", MAX_PARAMETERS);
        else
            fine = read_load_parameter(value.field->message, value.bytes, &parameters[count++], &flag, problem);
    }
    fine = fine && next == PROTO_END && repository_load(service->server, repository, model, parameters, count, problem);
    free(parameters);
    return fine;
}

bool handle_unload(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    ProtoReader reader = proto_reader(method->request, request);
    Slice repository = SLICE(""), model = SLICE("");
    LoadParameter parameter;
    ProtoValue value;
    ProtoNext next;
    bool dependents = false, flag;
    (void)response;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == REPOSITORY_MODEL_UNLOAD_REQUEST_repository_name)
            repository = value.bytes;
        else if (value.field->number == REPOSITORY_MODEL_UNLOAD_REQUEST_model_name)
            model = value.bytes;
        else if (!read_load_parameter(value.field->message, value.bytes, &parameter, &flag, problem))
            return false;
        else if (!slice_is(parameter.name, "unload_dependents"))
            continue;
        else if (parameter.type != PARAMETER_BOOL)
            return problem_set(
                problem, PROBLEM_INVALID, "invalid value type for 'unload_dependents' parameter, expected bool_param.");
        else
            dependents = flag;
    }
    return next == PROTO_END && repository_unload(service->server, repository, model, dependents, problem);
}
