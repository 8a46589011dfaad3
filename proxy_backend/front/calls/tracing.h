/* Traces of requests: which are traced, and where what the core tells of them goes. Any thread. */
#ifndef PYTRITON_FRONT_TRACING_H
#define PYTRITON_FRONT_TRACING_H

#include "core/server.h"

typedef struct Tracing Tracing;

/* With the server's trace-config. */
Tracing *tracing_new(Server *server, Problem *problem);
/* After the last call: what has not been written is written. */
void tracing_free(Tracing *tracing);

#endif
