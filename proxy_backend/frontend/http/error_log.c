#include "http/error_log.h"

#include "base/log.h"
#include "common/clock.h"
#include "http/typed.h"

#include <stdio.h>

enum { MAX_PATH = 400, SUBJECT_ROOM = MAX_PATH + 40 };

static bool is_enabled(const HttpService *service)
{
    return service->paths == HTTP_API && service->settings.route_table &&
        route_table_logs_errors(service->settings.route_table);
}

/* Write the method and the path. */
static void put_subject(char subject[SUBJECT_ROOM], const HttpHead *head)
{
    Slice method = head->method_name, path = head->path;
    snprintf(subject, SUBJECT_ROOM, "%.*s %.*s", method.size > 20 ? 20 : (int)method.size, method.start,
        path.size > MAX_PATH ? MAX_PATH : (int)path.size, path.start);
}

void error_log_begin(Call *call, const HttpHead *head)
{
    HttpCall *state = http_call(call);
    /* A request that has waited for its model begins a second time. */
    if (state->subject || !is_enabled(state->service))
        return;
    state->subject = call_memory(call, SUBJECT_ROOM);
    if (state->subject == NULL)
        return;
    put_subject(state->subject, head);
    state->began_ns = clock_ns();
}

void error_log_write(const Call *call, int status, const Problem *problem)
{
    const HttpCall *state = http_call((Call *)(uintptr_t)call);
    if (state->subject == NULL)
        return;
    Slice id = typed_request_id(problem_text(problem));
    double duration_ms = (double)(clock_ns() - state->began_ns) / 1e6;
    if (id.start)
        log_info(
            "error response: %d %s %.1f ms [request id: %.*s]", status, state->subject, duration_ms, SLICE_ARGS(id));
    else
        log_info("error response: %d %s %.1f ms", status, state->subject, duration_ms);
}

void error_log_refusal(const HttpService *service, const HttpHead *head, int status)
{
    char subject[SUBJECT_ROOM];
    if (!is_enabled(service))
        return;
    put_subject(subject, head);
    log_info("error response: %d %s 0.0 ms", status, subject);
}
