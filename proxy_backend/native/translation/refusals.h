/* Requests that no worker can serve. */
#ifndef PYTRITON_REFUSALS_H
#define PYTRITON_REFUSALS_H

#include "proxy/proxy.h"

/* Answer and release the requests that no worker can serve. Moves the others to the front and returns their number. */
uint32_t refuse_wrong(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

#endif
