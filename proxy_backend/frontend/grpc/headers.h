/* Headers of a call beyond the protocol itself: those forwarded to models, and those that restricted calls require. */
#ifndef PYTRITON_FRONTEND_GRPC_HEADERS_H
#define PYTRITON_FRONTEND_GRPC_HEADERS_H

#include "calls/call.h"
#include "http1/header_pattern.h"
#include "http2/http2.h"

/* Add the forwarded headers and the tracing headers to a call. `pattern` NULL: the latter only. */
bool grpc_forward_headers(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem);

#endif
