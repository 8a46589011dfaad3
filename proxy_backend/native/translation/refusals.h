/* Requests that nobody can serve. */
#ifndef PYTRITON_REFUSALS_H
#define PYTRITON_REFUSALS_H

#include "proxy/proxy.h"

/* Answer and release the requests that nobody can serve. Returns how many are left; these come first then. */
uint32_t refuse_wrong(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

#endif
