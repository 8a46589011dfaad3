/* Traces of requests: which are traced, and where what the core tells of them goes. Any thread. */
#ifndef PYTRITON_FRONT_TRACING_H
#define PYTRITON_FRONT_TRACING_H

#include "core/server.h"

typedef struct Tracing Tracing;

/* With the server's trace-config. */
Tracing *tracing_new(Server *server, Problem *problem);
/* After the last call: what has not been written is written. */
void tracing_free(Tracing *tracing);

/* A trace for a request that is about to start, which is the core's then. `parent` and `state` are its headers "traceparent" and
 * "tracestate", "" without. NULL: it is not traced. */
TRITONSERVER_InferenceTrace *tracing_begin(Tracing *tracing, const char *model, const char *parent, const char *state);

#endif
