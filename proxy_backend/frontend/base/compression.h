/* gzip (RFC 1952) and zlib (RFC 1950, which HTTP and gRPC call "deflate"), using the system's zlib. */
#ifndef PYTRITON_FRONTEND_BASE_COMPRESSION_H
#define PYTRITON_FRONTEND_BASE_COMPRESSION_H

#include "base/problem.h"
#include "common/buffer.h"

typedef enum { COMPRESSION_NONE, COMPRESSION_GZIP, COMPRESSION_DEFLATE } Compression;

/* Load zlib, once, before threads are started. `library` may be NULL for "libz.so.1". Without zlib, compressed
 * requests are refused.
 */
bool compression_load(const char *library, Problem *problem);
bool compression_is_loaded(void);

/* Decompress and append at most `limit` bytes. A gzip input may have several members. */
bool compression_expand(Compression compression, Slice input, Buffer *output, uint64_t limit, Problem *problem);
/* Compress the pieces as one and append the result. */
bool compression_shrink(Compression compression, const Slice *pieces, size_t count, Buffer *output, Problem *problem);

#endif
