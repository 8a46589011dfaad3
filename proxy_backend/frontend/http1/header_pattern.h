/* Selects the headers that models see as parameters: their names match a regular expression
 * (--http-header-forward-pattern, and gRPC's).
 */
#ifndef PYTRITON_FRONTEND_HTTP1_HEADER_PATTERN_H
#define PYTRITON_FRONTEND_HTTP1_HEADER_PATTERN_H

#include "base/problem.h"

typedef struct HeaderPattern HeaderPattern;

/* What has to match, as in Triton: a part of the name, ignoring case, for HTTP; the whole name for gRPC. "(?i)" at
 * the beginning: ignore case.
 */
typedef enum { HEADER_PART, HEADER_WHOLE } HeaderMatch;

/* Returns NULL if the expression is invalid, or without memory. */
HeaderPattern *header_pattern_new(const char *expression, HeaderMatch match, Problem *problem);
/* NULL: does nothing. */
void header_pattern_free(HeaderPattern *pattern);
/* Returns whether a header is forwarded. `pattern` NULL: none is. */
bool header_pattern_takes(const HeaderPattern *pattern, Slice name);

#endif
