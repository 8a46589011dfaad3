/* Headers of a gRPC call that are forwarded to models, or that restricted calls require. */
#ifndef PYTRITON_FRONTEND_GRPC_HEADERS_H
#define PYTRITON_FRONTEND_GRPC_HEADERS_H

#include "calls/call.h"
#include "http1/header_pattern.h"
#include "http2/http2.h"

/* Add forwarded headers and tracing headers to a call. If `pattern` is NULL, only the latter. */
bool grpc_forward_headers(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem);

#endif
