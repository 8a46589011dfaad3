/* The end of a proxy. */
#ifndef PYTRITON_LIFE_H
#define PYTRITON_LIFE_H

#include "proxy/proxy.h"

/* Free a proxy that the dispatcher does not know, or no more. */
void free_proxy(Proxy *proxy);
/* Say that a proxy ends, and free it. */
void end_proxy(Proxy *proxy);

#endif
