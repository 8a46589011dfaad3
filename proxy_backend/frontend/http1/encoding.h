/* The compression of a request's body, and the one that its client accepts. */
#ifndef PYTRITON_FRONTEND_HTTP1_ENCODING_H
#define PYTRITON_FRONTEND_HTTP1_ENCODING_H

#include "base/compression.h"
#include "http1/head.h"

/* Read Content-Encoding. Returns false with a problem if it is unsupported, or names several. */
bool encoding_of_request(const HttpHead *head, Compression *compression, Problem *problem);
/* Returns the compression that Accept-Encoding prefers. If both are equal, gzip comes before deflate. */
Compression encoding_of_response(const HttpHead *head);
const char *encoding_name(Compression compression);

#endif
