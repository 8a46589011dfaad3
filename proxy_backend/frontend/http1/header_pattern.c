#include "http1/header_pattern.h"

#include "common/buffer.h"

#include <regex.h>
#include <stdlib.h>

enum { MAX_NAME_LEN = 127 };

struct HeaderPattern {
    regex_t expression;
};

/* Handle "(?i)" here, because extended regular expressions do not have it. */
static int compile(HeaderPattern *pattern, const char *expression, HeaderMatch match)
{
    bool either_case = strncmp(expression, "(?i)", 4) == 0;
    const char *rest = either_case ? expression + 4 : expression;
    int flags = REG_EXTENDED | REG_NOSUB | (either_case || match == HEADER_PART ? REG_ICASE : 0);
    Buffer whole = {0};
    buffer_format(&whole, match == HEADER_WHOLE ? "^(%s)$" : "%s", rest);
    const char *text = buffer_string(&whole);
    int error = text ? regcomp(&pattern->expression, text, flags) : REG_ESPACE;
    buffer_free(&whole);
    return error;
}

HeaderPattern *header_pattern_new(const char *expression, HeaderMatch match, Problem *problem)
{
    HeaderPattern *pattern = calloc(1, sizeof *pattern);
    int error = pattern ? compile(pattern, expression, match) : REG_ESPACE;
    if (error == 0)
        return pattern;
    char text[200] = "";
    if (pattern)
        regerror(error, &pattern->expression, text, sizeof text);
    free(pattern);
    if (error == REG_ESPACE)
        problem_no_memory(problem);
    else
        problem_set(problem, PROBLEM_INVALID,
            "the pattern of headers to forward, '%s', is not a regular expression: %s", expression, text);
    return NULL;
}

void header_pattern_free(HeaderPattern *pattern)
{
    if (pattern)
        regfree(&pattern->expression);
    free(pattern);
}

bool header_pattern_takes(const HeaderPattern *pattern, Slice name)
{
    char text[MAX_NAME_LEN + 1];
    if (pattern == NULL || name.size > MAX_NAME_LEN)
        return false;
    memcpy(text, name.start, name.size);
    text[name.size] = '\0';
    return regexec(&pattern->expression, text, 0, NULL, 0) == 0;
}
