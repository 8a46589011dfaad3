/* Headers of a call that concern more than the protocol: those that models are to see, and those that restricted calls need. */
#ifndef PYTRITON_FRONT_GRPC_HEADERS_H
#define PYTRITON_FRONT_GRPC_HEADERS_H

#include "calls/call.h"
#include "http1/header_pattern.h"
#include "http2/http2.h"

/* Give a call those headers that models are to see, and the ones that say what it is part of. `pattern` NULL: the latter only. */
bool headers_forward(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem);

#endif
