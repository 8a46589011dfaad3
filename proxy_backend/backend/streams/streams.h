/* Models that may answer a request many times, or at any time. See proxy_backend/python_proxy/streams.py. */
#ifndef PYTRITON_BACKEND_STREAMS_H
#define PYTRITON_BACKEND_STREAMS_H

#include "proxy/proxy.h"

/* Get a lane with its reader thread unless there is one. Returns NULL, or why there will be no worker, for free(). */
char *streams_attach(Streams *streams);
/* Pass a batch to a worker, and release its requests. Returns when a worker has begun the batch, or it was answered
 * with an error.
 */
void streams_begin(Streams *streams, TRITONBACKEND_Request **requests, uint32_t count);
/* Release the lane. Returns false if answers are still in flight: tritonserver reduces the number of instances without
 * waiting for them. The proxy then ends after the last answer.
 */
bool streams_end(Streams *streams);

#endif
