/* The compression of a request, and the one that its client accepts. */
#ifndef PYTRITON_FRONTEND_HTTP1_ENCODING_H
#define PYTRITON_FRONTEND_HTTP1_ENCODING_H

#include "base/compression.h"
#include "http1/head.h"

/* Read Content-Encoding. Returns false if it is unsupported, or has several. */
bool encoding_of_request(const HttpHead *head, Compression *compression, Problem *problem);
/* Returns the best that Accept-Encoding allows; gzip before deflate if both are equal. */
Compression encoding_of_response(const HttpHead *head);
const char *encoding_name(Compression compression);

#endif
