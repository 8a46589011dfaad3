/* The end of a proxy's life. */
#ifndef PYTRITON_BACKEND_PROXY_TEARDOWN_H
#define PYTRITON_BACKEND_PROXY_TEARDOWN_H

#include "proxy/proxy.h"

/* Free a proxy that the dispatcher does not know, or no longer knows. */
void proxy_free(Proxy *proxy);
/* Send Detach for a proxy, and free it. */
void proxy_end(Proxy *proxy);

#endif
