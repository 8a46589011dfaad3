/* A chunked body (RFC 9112, 7.1), decoded piece by piece as it arrives. */
#ifndef PYTRITON_FRONTEND_HTTP1_CHUNKS_H
#define PYTRITON_FRONTEND_HTTP1_CHUNKS_H

#include "http1/head.h"

enum {
    CHUNKS_LINE = 1024, /* bytes of a line: a size with its extensions, or a trailer */
};

/* All zero: at the beginning. */
typedef struct {
    int state;
    uint64_t left;     /* of this chunk */
    uint64_t overhead; /* bytes of extensions and trailers, of all chunks */
    uint64_t body;     /* bytes so far */
    size_t line;       /* the size of the partial line */
    char text[CHUNKS_LINE];
} HttpChunks;

typedef struct {
    uint64_t body_bytes, overhead_bytes;
} ChunkLimits;

/* Consume what is possible from `input`. HTTP_DONE: the body has ended, the rest of `input` belongs to the next
 * request. HTTP_MORE: `data`, which may be empty, belongs to the body; call again while `input` is not empty.
 */
HttpResult http_chunks(HttpChunks *chunks, Slice *input, Slice *data, const ChunkLimits *limits, Problem *problem);

#endif
