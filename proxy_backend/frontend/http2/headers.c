#include "http2/session.h"

#include <stdlib.h>

enum { TIMEOUT_DIGITS = 8 };
/* Maximum size of a grpc-message. By default, clients accept 8 KB of metadata, including names and the overhead of
 * each header.
 */
enum { MESSAGE_BYTES = 7900 };

static size_t header_bytes(const GrpcStream *stream)
{
    return stream->headers.size + stream->header_count * 32; /* Count as in RFC 9113. */
}

/* Parse a time such as "100m": at most 8 digits and a unit. */
static bool read_timeout(Slice value, uint64_t *timeout_ms)
{
    static const struct {
        char unit;
        uint64_t us;
    } UNITS[] = {{'H', 3600000000u}, {'M', 60000000u}, {'S', 1000000u}, {'m', 1000u}, {'u', 1u}, {'n', 0u}};
    uint64_t number;
    if (value.size < 2 || value.size > TIMEOUT_DIGITS + 1)
        return false;
    char unit = value.start[value.size - 1];
    if (!slice_unsigned((Slice){value.start, value.size - 1}, &number))
        return false;
    for (size_t i = 0; i < sizeof UNITS / sizeof *UNITS; i++)
        if (UNITS[i].unit == unit) {
            *timeout_ms = (number * UNITS[i].us + 999) / 1000;
            if (*timeout_ms == 0)
                *timeout_ms = 1;
            return true;
        }
    return false;
}

static void read_special(GrpcStream *stream, Slice name, Slice value)
{
    if (slice_is(name, ":method"))
        stream->is_post = slice_is(value, "POST");
    else if (slice_is(name, "content-type"))
        stream->is_grpc = slice_starts(value, "application/grpc") &&
            (value.size == strlen("application/grpc") || strchr("+;", value.start[strlen("application/grpc")]));
    else if (slice_is(name, "grpc-encoding"))
        stream->encoding = slice_is(value, "identity") ? GRPC_IDENTITY
            : slice_is(value, "gzip")                  ? GRPC_GZIP
            : slice_is(value, "deflate")               ? GRPC_DEFLATE
                                                       : GRPC_UNKNOWN;
    else if (slice_is(name, "grpc-timeout") && !read_timeout(value, &stream->timeout_ms))
        problem_set(&stream->problem, PROBLEM_INVALID, "the header grpc-timeout is not a number followed by a unit");
}

bool grpc_stream_header(GrpcStream *stream, Slice name, Slice value, const Limits *limits)
{
    stream->header_count++;
    if (stream->header_count > limits->headers ||
        header_bytes(stream) + name.size + value.size > limits->header_bytes) {
        refusals_count(stream->header_count > limits->headers ? REFUSED_HEADERS : REFUSED_HEADER_BYTES);
        return problem_set(&stream->problem, PROBLEM_HEADERS,
            "the call's metadata is too large: at most %llu bytes in %llu headers",
            (unsigned long long)limits->header_bytes, (unsigned long long)limits->headers);
    }
    read_special(stream, name, value);
    buffer_put_slice(&stream->headers, name);
    buffer_put_char(&stream->headers, 0);
    buffer_put_slice(&stream->headers, value);
    buffer_put_char(&stream->headers, 0);
    return !stream->headers.failed || problem_no_memory(&stream->problem);
}

bool grpc_stream_check(GrpcStream *stream)
{
    stream->path = grpc_header(stream, ":path");
    if (stream->problem.kind != PROBLEM_NONE)
        return false;
    if (!stream->is_post)
        return problem_set(&stream->problem, PROBLEM_METHOD, "a gRPC call must be a POST");
    if (!stream->is_grpc)
        return problem_set(&stream->problem, PROBLEM_MEDIA, "the content-type of a gRPC call must be application/grpc");
    if (stream->encoding == GRPC_UNKNOWN)
        return problem_set(
            &stream->problem, PROBLEM_UNSUPPORTED, "the grpc-encoding must be identity, deflate or gzip");
    return true;
}

bool grpc_next_header(const GrpcStream *stream, size_t *at, Slice *name, Slice *value)
{
    if (*at >= stream->headers.size)
        return false;
    const char *start = stream->headers.data + *at;
    *name = slice_of(start);
    *at += name->size + 1;
    *value = slice_of(stream->headers.data + *at);
    *at += value->size + 1;
    return true;
}

Slice grpc_header(const GrpcStream *stream, const char *wanted)
{
    Slice name, value, found = {0};
    for (size_t at = 0; grpc_next_header(stream, &at, &name, &value);)
        if (slice_is(name, wanted))
            found = value;
    return found;
}

void grpc_put_message(Buffer *to, Slice text)
{
    static const char DIGITS[] = "0123456789ABCDEF";
    for (size_t i = 0; i < text.size; i++) {
        unsigned char byte = (unsigned char)text.start[i];
        if (to->size >= MESSAGE_BYTES && (byte & 0xc0) != 0x80) /* Do not split a character. */
            return;
        if (byte >= ' ' && byte <= '~' && byte != '%') {
            buffer_put_char(to, (char)byte);
            continue;
        }
        buffer_put_char(to, '%');
        buffer_put_char(to, DIGITS[byte >> 4]);
        buffer_put_char(to, DIGITS[byte & 15]);
    }
}
