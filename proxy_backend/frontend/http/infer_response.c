/* The inference endpoint: from a request's headers to the bytes of the answer. */
#include "http/request.h"

#include "http/bodies.h"
#include "http1/encoding.h"
#include "common/json_writer.h"

/* ── the answer ───────────────────────────────────────────────────────────────────────────────────── */

static void put_shape(Buffer *text, const ResponseOutput *output)
{
    buffer_put_string(text, ",\"shape\":[");
    for (uint64_t i = 0; i < output->dims; i++) {
        if (i)
            buffer_put_char(text, ',');
        buffer_put_signed(text, output->shape[i]);
    }
    buffer_put_char(text, ']');
}

/* Write the parameters of an output in shared memory. */
static void put_region(Buffer *text, const ResponseOutput *output)
{
    buffer_put_string(text, ",\"parameters\":{\"shared_memory_region\":");
    json_put_sanitized(text, slice_of(output->requested->user));
    if (output->requested->offset) {
        buffer_put_string(text, ",\"shared_memory_offset\":");
        buffer_put_unsigned(text, output->requested->offset);
    }
    buffer_put_string(text, ",\"shared_memory_byte_size\":");
    buffer_put_unsigned(text, output->size);
    buffer_put_char(text, '}');
}

static bool is_binary(const ResponseOutput *output, bool binary_output)
{
    unsigned flags = output->requested ? output->requested->flags : 0;
    return flags & OUTPUT_BINARY || (binary_output && !(flags & OUTPUT_JSON));
}

/* Write one output. Data outside the JSON is added to `part`. */
static bool put_output(
    Buffer *text, const ResponseOutput *output, bool binary_output, struct iovec *part, Problem *problem)
{
    *part = (struct iovec){0};
    buffer_put_string(text, "{\"name\":");
    json_put_sanitized(text, slice_of(output->name));
    buffer_put_string(text, ",\"datatype\":\"");
    buffer_put_string(text, datatype_name(output->datatype));
    buffer_put_char(text, '"');
    put_shape(text, output);
    if (output->in_region) {
        put_region(text, output);
    } else if (is_binary(output, binary_output)) {
        buffer_put_string(text, ",\"parameters\":{\"binary_data_size\":");
        buffer_put_unsigned(text, output->size);
        buffer_put_char(text, '}');
        *part = (struct iovec){(void *)(uintptr_t)output->bytes, output->size};
    } else {
        buffer_put_string(text, ",\"data\":[");
        if (!tensor_write(output, text, problem))
            return false;
        buffer_put_char(text, ']');
    }
    buffer_put_char(text, '}');
    return true;
}

/* Write the answer's JSON. `bytes` receives the size of the data that follows it. */
static bool put_response(Buffer *text, const CallResponse *response, bool binary_output, struct iovec *parts,
    size_t *bytes, Problem *problem)
{
    response_head_write(text, response);
    if (response->parameter_count) {
        buffer_put_string(text, ",\"parameters\":{");
        parameters_write(text, response);
        buffer_put_char(text, '}');
    }
    buffer_put_string(text, ",\"outputs\":[");
    for (size_t i = 0; i < response->output_count; i++) {
        if (i)
            buffer_put_char(text, ',');
        if (!put_output(text, &response->outputs[i], binary_output, &parts[i], problem))
            return false;
        *bytes += parts[i].iov_len;
    }
    buffer_put_string(text, "]}");
    return true;
}

/* Handle the answer. Any thread. */
static void on_response(Call *call, CallResponse *response)
{
    HttpCall *state = http_call(call);
    Problem problem = {0};
    response = response_keep_first(state, response);
    if (response == NULL)
        return;
    size_t bytes = 0;
    struct iovec *parts = call_memory(call, (response->output_count + 1) * sizeof *parts);
    if (response->problem.kind != PROBLEM_NONE) {
        problem_set(&problem, response->problem.kind, "%s", problem_text(&response->problem));
    } else if (response->empty) {
        problem_set(
            &problem, PROBLEM_INTERNAL, "the model '%s' returned no response", response->model ? response->model : "");
    } else if (parts == NULL) {
        problem_no_memory(&problem);
    } else if (response_begin(call, &problem) &&
        put_response(&call->reply, response, state->binary_output, parts, &bytes, &problem)) {
        size_t json_bytes = bytes ? response_body(call).size : 0;
        const char *type = bytes ? sagemaker_vertex_response_type(call, json_bytes) : NULL;
        response_send(call, 200,
            type        ? type
                : bytes ? TYPE_BINARY
                        : TYPE_JSON,
            parts, (int)response->output_count, type ? 0 : json_bytes);
        return;
    }
    response_send_problem(call, &problem);
}

/* ── the request ──────────────────────────────────────────────────────────────────────────────────── */

bool http_forward_headers(HttpRequest *request, Problem *problem)
{
    const HttpHead *head = request->head;
    for (uint32_t i = 0; i < head->count; i++) {
        const HttpHeader *header = &head->headers[i];
        call_origin_header(request->call, header->name, header->value);
        LoadReport asked = load_report_requested(header->name, header->value);
        if (asked)
            http_call(request->call)->load_report = asked;
        if (header_pattern_takes(request->service->forward, header->name) &&
            !call_header(request->call, header->name, header->value, problem))
            return false;
    }
    return true;
}

/* Find out which part of the body is JSON. */
static bool json_size(const HttpRequest *request, uint64_t *size, bool *is_raw, Problem *problem)
{
    Slice header = http_header(request->head, "inference-header-content-length");
    if (header.start == NULL)
        header = sagemaker_vertex_json_size(request->service, request->head);
    *size = request->body.size;
    *is_raw = request->body.size == 0;
    if (header.start == NULL)
        return true;
    if (http_header_repeats(request->head, "inference-header-content-length") || !slice_unsigned(header, size))
        return problem_set(
            problem, PROBLEM_INVALID, "Inference-Header-Content-Length is not a number, or occurs more than once");
    *is_raw = *size == 0;
    if (*size > request->body.size)
        return problem_set(problem, PROBLEM_INVALID, "inference header size should be in range (0, %zu), got: %.*s",
            request->body.size, SLICE_ARGS(header));
    return true;
}

bool http_handle_infer(HttpRequest *request, Problem *problem)
{
    Call *call = request->call;
    HttpCall *state = http_call(call);
    uint64_t size;
    bool is_raw;
    if (!call_model(call, request->name, request->version, problem))
        return false;
    if (call->decoupled)
        return problem_set(
            problem, PROBLEM_UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy");
    if (!json_size(request, &size, &is_raw, problem))
        return false;
    state->compression = encoding_of_response(request->head);
    Slice json = {request->body.start, (size_t)size}, binary = slice_after(request->body, (size_t)size);
    if (is_raw) {
        state->binary_output = true;
        if (!call_input_raw(call, binary.start, binary.size, problem))
            return false;
    } else if (!http_infer_read(call, json, binary, request->limits, &state->binary_output, problem)) {
        return false;
    }
    return http_forward_headers(request, problem) && call_start(call, on_response, problem);
}
