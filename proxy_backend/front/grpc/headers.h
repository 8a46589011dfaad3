/* Headers of a call that concern more than the protocol: those that models are to see, and those that restricted calls need. */
#ifndef PYTRITON_FRONT_GRPC_HEADERS_H
#define PYTRITON_FRONT_GRPC_HEADERS_H

#include "calls/call.h"
#include "http2/http2.h"

#include <regex.h>

/* Which headers models see as parameters (--grpc-header-forward-pattern): those whose whole name matches. */
typedef struct HeaderPattern {
    regex_t expression;
} HeaderPattern;

/* NULL: the expression is none, or there is no memory. */
HeaderPattern *header_pattern_new(const char *expression, Problem *problem);
void header_pattern_free(HeaderPattern *pattern);
/* Give a call those headers, and the ones that say which trace it is part of. `pattern` NULL: the latter only. */
bool headers_forward(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem);

#endif
