/* Batches that may be answered many times, or at any time: see proxy_backend/streams.py. */
#ifndef PYTRITON_STREAMS_H
#define PYTRITON_STREAMS_H

#include "proxy/proxy.h"

/* Get a lane, unless there is one, and a thread that reads what comes on it. Returns NULL, or why no worker will come
 * any more, for free(). */
char *streams_attach(Streams *streams);
/* Hand a batch to a worker; returns when it has begun, or has been answered with an error. The requests are released. */
void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count);
/* Let the lane go. False: answers are still under way (tritonserver ends an instance without waiting for them when it gets
 * along with fewer); the proxy ends by itself when they have been given. */
bool streams_end(Streams *streams);

#endif
