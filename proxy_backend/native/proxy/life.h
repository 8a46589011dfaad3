/* The end of a proxy's life. */
#ifndef PYTRITON_LIFE_H
#define PYTRITON_LIFE_H

#include "proxy/proxy.h"

/* Free a proxy that the dispatcher does not know, or no longer knows. */
void free_proxy(Proxy *proxy);
/* Send Detach for a proxy, and free it. */
void end_proxy(Proxy *proxy);

#endif
