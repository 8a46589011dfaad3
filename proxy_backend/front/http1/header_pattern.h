/* Which headers models see as parameters: those whose names match a regular expression (--http-header-forward-pattern, and gRPC's). */
#ifndef PYTRITON_FRONT_HEADER_PATTERN_H
#define PYTRITON_FRONT_HEADER_PATTERN_H

#include "base/problem.h"

typedef struct HeaderPattern HeaderPattern;

/* What has to match: as Triton has it, a part of the name in either case of HTTP, the whole name of gRPC. "(?i)" at the beginning:
 * in either case. */
typedef enum { HEADER_PART, HEADER_WHOLE } HeaderMatch;

/* NULL: the expression is none, or there is no memory. */
HeaderPattern *header_pattern_new(const char *expression, HeaderMatch match, Problem *problem);
/* NULL: nothing happens. */
void header_pattern_free(HeaderPattern *pattern);
/* Whether a header is handed on. `pattern` NULL: none is. */
bool header_pattern_takes(const HeaderPattern *pattern, Slice name);

#endif
