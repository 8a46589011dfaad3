#include "admin/log_settings.h"
#include "admin/trace_settings.h"
#include "protobuf/json_message.h"
#include "grpc/method_handlers.h"

enum { MAX_CHANGES = 32, MAX_VALUES = 16 };

/* ── log settings ───────────────────────────────────────────────────────────────────────────────────── */

static bool read_log_value(Slice message, LogChange *change, Problem *problem)
{
    ProtoReader reader = proto_reader(&LOG_SETTINGS_REQUEST_SETTING_VALUE, message);
    ProtoValue value;
    ProtoNext next;
    change->type = PARAMETER_STRING;
    change->string = SLICE("");
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (value.field->number == LOG_SETTINGS_REQUEST_SETTING_VALUE_bool_param) {
            change->type = PARAMETER_BOOL;
            change->boolean = value.number != 0;
        } else if (value.field->number == LOG_SETTINGS_REQUEST_SETTING_VALUE_uint32_param) {
            change->type = PARAMETER_INT;
            change->integer = value.number;
        } else {
            change->type = PARAMETER_STRING;
            change->string = value.bytes;
        }
    }
    return next == PROTO_END;
}

/* Convert the log settings. The type of each JSON value selects the field of the oneof. */
static bool put_log_settings(Slice text, Buffer *response, Problem *problem)
{
    Json json = json_of_core(text);
    Buffer scratch = {0};
    Slice key;
    bool fine = json_object(&json);
    while (fine && json_member(&json, &scratch, &key)) {
        static const uint32_t CHOICES[] = {[JSON_TRUE] = LOG_SETTINGS_RESPONSE_SETTING_VALUE_bool_param,
            [JSON_FALSE] = LOG_SETTINGS_RESPONSE_SETTING_VALUE_bool_param,
            [JSON_NUMBER] = LOG_SETTINGS_RESPONSE_SETTING_VALUE_uint32_param,
            [JSON_STRING] = LOG_SETTINGS_RESPONSE_SETTING_VALUE_string_param,
            [JSON_NULL] = 0};
        size_t entry = proto_begin(response, LOG_SETTINGS_RESPONSE_settings);
        proto_put_bytes(response, 1, key);
        size_t value = proto_begin(response, 2);
        JsonKind kind = json_kind(&json);
        Buffer string = {0};
        bool flag;
        uint64_t number;
        uint32_t choice = kind < sizeof CHOICES / sizeof *CHOICES ? CHOICES[kind] : 0;
        if (json_bool(&json, &flag))
            proto_put_number(response, choice, flag);
        else if (json_unsigned(&json, &number))
            proto_put_number(response, choice, number);
        else if (json_string_to(&json, &string))
            proto_put_bytes(response, choice, buffer_slice(&string));
        else
            fine = false;
        buffer_free(&string);
        proto_end(response, value);
        proto_end(response, entry);
    }
    buffer_free(&scratch);
    return (fine && json_end(&json)) || problem_set(problem, PROBLEM_INTERNAL, "the log settings cannot be read");
}

bool handle_log_settings(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    LogChange changes[MAX_CHANGES];
    ProtoReader reader = proto_reader(method->request, request);
    ProtoValue value;
    ProtoNext next;
    size_t count = 0;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        Slice message = {0};
        if (count == MAX_CHANGES)
            return problem_set(problem, PROBLEM_TOO_LARGE, "at most %d settings can be changed at a time", MAX_CHANGES);
        const RequestField pair[] = {{1, &changes[count].name, NULL}, {2, &message, NULL}};
        if (!read_request_fields(value.field->message, value.bytes, pair, 2, problem) ||
            !read_log_value(message, &changes[count], problem))
            return false;
        count++;
    }
    Buffer json = {0};
    bool fine = next == PROTO_END && (count == 0 || log_settings_change(service->server, changes, count, problem)) &&
        log_settings_read(service->server, &json, problem) && put_log_settings(buffer_slice(&json), response, problem);
    buffer_free(&json);
    return fine;
}

/* ── trace settings ─────────────────────────────────────────────────────────────────────────────────── */

static bool read_trace_values(Slice message, Slice *values, size_t *count, Problem *problem)
{
    ProtoReader reader = proto_reader(&TRACE_SETTING_REQUEST_SETTING_VALUE, message);
    ProtoValue value;
    ProtoNext next;
    *count = 0;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        if (*count == MAX_VALUES)
            return problem_set(problem, PROBLEM_TOO_LARGE, "a trace setting has at most %d values", MAX_VALUES);
        values[(*count)++] = value.bytes;
    }
    return next == PROTO_END;
}

/* Convert the trace settings, whose values are strings or arrays of strings. */
static bool put_trace_settings(Slice text, Buffer *response, Problem *problem)
{
    Json json = json_of_core(text);
    Buffer scratch = {0}, string = {0};
    Slice key, value;
    bool fine = json_object(&json);
    while (fine && json_member(&json, &scratch, &key)) {
        size_t entry = proto_begin(response, TRACE_SETTING_RESPONSE_settings);
        proto_put_bytes(response, 1, key);
        size_t values = proto_begin(response, 2);
        if (json_array(&json)) {
            while (fine && json_element(&json))
                if ((fine = json_string(&json, &string, &value)))
                    proto_put_bytes(response, TRACE_SETTING_RESPONSE_SETTING_VALUE_value, value);
        } else if ((fine = json_string(&json, &string, &value))) {
            proto_put_bytes(response, TRACE_SETTING_RESPONSE_SETTING_VALUE_value, value);
        }
        proto_end(response, values);
        proto_end(response, entry);
    }
    buffer_free(&scratch);
    buffer_free(&string);
    return (fine && json_end(&json)) || problem_set(problem, PROBLEM_INTERNAL, "the trace settings cannot be read");
}

bool handle_trace_setting(
    const GrpcService *service, const GrpcMethod *method, Slice request, Buffer *response, Problem *problem)
{
    TraceChange changes[MAX_CHANGES];
    Slice values[MAX_CHANGES][MAX_VALUES], model = SLICE("");
    ProtoReader reader = proto_reader(method->request, request);
    ProtoValue value;
    ProtoNext next;
    size_t count = 0;
    while ((next = proto_next(&reader, &value, problem)) == PROTO_FOUND) {
        Slice message = {0};
        if (value.field->number == TRACE_SETTING_REQUEST_model_name) {
            model = value.bytes;
            continue;
        }
        if (count == MAX_CHANGES)
            return problem_set(problem, PROBLEM_TOO_LARGE, "at most %d settings can be changed at a time", MAX_CHANGES);
        const RequestField pair[] = {{1, &changes[count].name, NULL}, {2, &message, NULL}};
        if (!read_request_fields(value.field->message, value.bytes, pair, 2, problem) ||
            !read_trace_values(message, values[count], &changes[count].count, problem))
            return false;
        changes[count].values = values[count];
        count++;
    }
    Buffer json = {0};
    bool fine = next == PROTO_END &&
        (count == 0 || trace_settings_change(service->tracing, service->server, model, changes, count, problem)) &&
        trace_settings_read(service->tracing, service->server, model, &json, problem) &&
        put_trace_settings(buffer_slice(&json), response, problem);
    buffer_free(&json);
    return fine;
}
