#include "base/problem.h"

#include "base/http_statuses.h"
#include "common/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    int status, grpc;
} Codes;

/* HTTP statuses and gRPC codes by ProblemKind. */
static const Codes codes[] = {
    [PROBLEM_NONE] = {200, 0},
    [PROBLEM_INVALID] = {400, 3},
    [PROBLEM_FORBIDDEN] = {403, 14},
    [PROBLEM_NOT_FOUND] = {404, 5},
    [PROBLEM_METHOD] = {405, 12},
    [PROBLEM_SLOW] = {408, 4},
    [PROBLEM_EXISTS] = {409, 6},
    [PROBLEM_TOO_LARGE] = {413, 8},
    [PROBLEM_TARGET] = {414, 3},
    [PROBLEM_MEDIA] = {415, 3},
    [PROBLEM_EXPECTATION] = {417, 3},
    [PROBLEM_TOO_MANY] = {429, 8},
    [PROBLEM_HEADERS] = {431, 8},
    [PROBLEM_CANCELLED] = {499, 1},
    [PROBLEM_INTERNAL] = {500, 13},
    [PROBLEM_UNSUPPORTED] = {501, 12},
    [PROBLEM_UNAVAILABLE] = {503, 14},
    [PROBLEM_STORAGE] = {507, 8},
    [PROBLEM_UNKNOWN] = {400, 2},
    [PROBLEM_VERSION] = {505, 3},
    [PROBLEM_ELSEWHERE] = {503, 14},
    [PROBLEM_MODEL_PENDING] = {503, 14},
};

bool problem_set(Problem *problem, ProblemKind kind, const char *format, ...)
{
    char text[PROBLEM_TEXT + 1];
    va_list arguments;
    va_start(arguments, format);
    int size = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    problem_clear(problem);
    problem->kind = kind;
    if (size >= 0) {
        /* The text may quote a client's input, so sanitize it. */
        size_t whole = (size_t)size < sizeof text ? (size_t)size : sizeof text - 1;
        problem->text = slice_copy((Slice){text, utf8_sanitize(text, whole)});
    }
    return false;
}

bool problem_no_memory(Problem *problem)
{
    problem_clear(problem);
    problem->kind = PROBLEM_UNAVAILABLE;
    return false;
}

void problem_clear(Problem *problem)
{
    free(problem->text);
    *problem = (Problem){0};
}

const char *problem_text(const Problem *problem)
{
    return problem->text ? problem->text : problem->kind == PROBLEM_NONE ? "" : "the server is out of memory";
}

int problem_status(ProblemKind kind)
{
    return codes[kind].status;
}

int problem_grpc_code(ProblemKind kind)
{
    return codes[kind].grpc;
}

const char *http_status_reason(int status)
{
    static const struct {
        int status;
        const char *reason;
    } reasons[] = {
#define STATUS(status, reason) {status, reason},
        HTTP_STATUSES(STATUS)
#undef STATUS
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}
