/* Decodes a chunked body (RFC 9112, 7.1) piece by piece, as it arrives. */
#ifndef PYTRITON_FRONTEND_HTTP1_CHUNKS_H
#define PYTRITON_FRONTEND_HTTP1_CHUNKS_H

#include "http1/head.h"

enum {
    CHUNKS_LINE = 1024, /* maximum size of a line: a chunk size with extensions, or a trailer */
};

/* The state of decoding. All zeros at first. */
typedef struct {
    int state;
    uint64_t left;     /* bytes left in the current chunk */
    uint64_t overhead; /* bytes of extensions and trailers in all chunks */
    uint64_t body;     /* bytes of the body so far */
    size_t line;       /* size of the incomplete line */
    char text[CHUNKS_LINE];
} HttpChunks;

typedef struct {
    uint64_t body_bytes, overhead_bytes;
} ChunkLimits;

/* Decode from the beginning of `input`, and remove what was used. HTTP_MORE: `data`, possibly empty, is the next part
 * of the body; call again while `input` is not empty. HTTP_DONE: the body is complete, and the rest of `input` belongs
 * to the next request.
 */
HttpResult http_chunks(HttpChunks *chunks, Slice *input, Slice *data, const ChunkLimits *limits, Problem *problem);

#endif
