/* Requests that no worker can serve. */
#ifndef PYTRITON_REFUSALS_H
#define PYTRITON_REFUSALS_H

#include "proxy/proxy.h"

/* Answer and release the requests that no worker can serve. Returns the number of the others, and puts them first. */
uint32_t refuse_wrong(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

#endif
