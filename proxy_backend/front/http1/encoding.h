/* Which compression a request has, and which one its client takes. */
#ifndef PYTRITON_FRONT_HTTP1_ENCODING_H
#define PYTRITON_FRONT_HTTP1_ENCODING_H

#include "base/compression.h"
#include "http1/head.h"

/* From Content-Encoding. False: it is another one, or several. */
bool encoding_of_request(const HttpHead *head, Compression *compression, Problem *problem);
/* The best that Accept-Encoding allows; gzip before deflate where both are as good. */
Compression encoding_of_answer(const HttpHead *head);
const char *encoding_name(Compression compression);

#endif
