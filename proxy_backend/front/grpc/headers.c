#include "grpc/headers.h"

#include <stdlib.h>

HeaderPattern *header_pattern_new(const char *expression, Problem *problem)
{
    Text whole = {0};
    HeaderPattern *pattern = calloc(1, sizeof *pattern);
    text_format(&whole, "^(%s)$", expression);
    const char *text = text_string(&whole);
    int error = pattern && text ? regcomp(&pattern->expression, text, REG_EXTENDED | REG_NOSUB) : REG_ESPACE;
    text_free(&whole);
    if (error == 0)
        return pattern;
    free(pattern);
    if (error == REG_ESPACE)
        problem_no_memory(problem);
    else
        problem_set(
            problem, PROBLEM_INVALID, "the pattern of headers to forward, '%s', is no regular expression", expression);
    return NULL;
}

void header_pattern_free(HeaderPattern *pattern)
{
    if (pattern)
        regfree(&pattern->expression);
    free(pattern);
}

bool headers_forward(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem)
{
    Slice name, value;
    for (size_t at = 0; grpc_next_header(stream, &at, &name, &value);) {
        call_trace_header(call, name, value);
        /* Names end with NUL; those with a colon are HTTP/2's own. */
        if (pattern && name.start[0] != ':' && regexec(&pattern->expression, name.start, 0, NULL, 0) == 0 &&
            !call_header(call, name, value, problem))
            return false;
    }
    return true;
}
