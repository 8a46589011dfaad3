/* Selects the headers that models get as parameters, by a regular expression for their names
 * (--http-header-forward-pattern, and the same for gRPC).
 */
#ifndef PYTRITON_FRONTEND_HTTP1_HEADER_PATTERN_H
#define PYTRITON_FRONTEND_HTTP1_HEADER_PATTERN_H

#include "base/problem.h"

typedef struct HeaderPattern HeaderPattern;

/* What the expression has to match, as in Triton: a part of the name, ignoring case (HTTP), or the whole name (gRPC).
 * With "(?i)" at its beginning, the case is ignored, too.
 */
typedef enum { HEADER_PART, HEADER_WHOLE } HeaderMatch;

/* Returns NULL if the expression is invalid, or without memory. */
HeaderPattern *header_pattern_new(const char *expression, HeaderMatch match, Problem *problem);
/* Free a pattern; NULL is allowed. */
void header_pattern_free(HeaderPattern *pattern);
/* Returns whether a header is forwarded. Without a pattern, none is. */
bool header_pattern_takes(const HeaderPattern *pattern, Slice name);

#endif
