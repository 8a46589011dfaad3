#include "grpc/headers.h"

bool grpc_forward_headers(const GrpcStream *stream, const HeaderPattern *pattern, Call *call, Problem *problem)
{
    Slice name, value;
    for (size_t at = 0; grpc_next_header(stream, &at, &name, &value);) {
        call_origin_header(call, name, value);
        /* Names with a colon are pseudo-headers of HTTP/2. */
        if (pattern && name.start[0] != ':' && header_pattern_takes(pattern, name) &&
            !call_header(call, name, value, problem))
            return false;
    }
    return true;
}
