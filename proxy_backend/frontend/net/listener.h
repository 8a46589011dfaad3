/* Accepts the connections of an endpoint, in each loop. */
#ifndef PYTRITON_FRONTEND_NET_LISTENER_H
#define PYTRITON_FRONTEND_NET_LISTENER_H

#include "net/connection.h"

typedef struct Listener Listener;

/* Accept connections in a loop from now on. Any thread, before the loop ends. The caller keeps the endpoint's
 * descriptor.
 */
Listener *listener_open(Loop *loop, const Endpoint *endpoint, Problem *problem);
/* Stop accepting. The endpoint still listens, and new connections wait in its backlog for another process or loop.
 * Only in the loop's thread, or after the loop has ended.
 */
void listener_close(Listener *listener);

#endif
