/* Accepts the connections of an endpoint, in each loop. */
#ifndef PYTRITON_FRONT_LISTENER_H
#define PYTRITON_FRONT_LISTENER_H

#include "net/connection.h"

typedef struct Listener Listener;

/* Accept in that loop from now on. Any thread, before the loop ends. The endpoint's descriptor stays the caller's. */
Listener *listener_open(Loop *loop, const Endpoint *endpoint, Problem *problem);
/* Accept no more. The endpoint goes on listening: connections wait in its backlog for whoever else accepts from it. The loop's thread, or after its
 * end. */
void listener_close(Listener *listener);

#endif
