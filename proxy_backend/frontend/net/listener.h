/* Accepts the connections of an endpoint, in each loop. */
#ifndef PYTRITON_FRONTEND_NET_LISTENER_H
#define PYTRITON_FRONTEND_NET_LISTENER_H

#include "net/connection.h"

typedef struct Listener Listener;

/* Accept in that loop from now on. Any thread, before the loop ends. The caller keeps the endpoint's descriptor. */
Listener *listener_open(Loop *loop, const Endpoint *endpoint, Problem *problem);
/* Stop accepting. The endpoint keeps listening: connections wait in its backlog for another process or loop. In the
 * loop's thread, or after its end.
 */
void listener_close(Listener *listener);

#endif
