/* Batches that may be answered many times, or at any time: see proxy_backend/python_proxy/streams.py. */
#ifndef PYTRITON_BACKEND_STREAMS_H
#define PYTRITON_BACKEND_STREAMS_H

#include "proxy/proxy.h"

/* Get a lane and its reader thread unless there is one. Returns NULL, or why there will be no worker, for free(). */
char *streams_attach(Streams *streams);
/* Pass a batch to a worker. Returns when it has begun, or has been answered with an error. The requests are released.
 */
void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count);
/* Release the lane. Returns false if answers are still in flight (tritonserver ends an instance without waiting for
 * them when it reduces their number); the proxy then ends by itself after the last answer.
 */
bool streams_end(Streams *streams);

#endif
