/* Rejects requests whose contents no worker can serve. */
#ifndef PYTRITON_BACKEND_TRANSLATION_REQUEST_CHECK_H
#define PYTRITON_BACKEND_TRANSLATION_REQUEST_CHECK_H

#include "proxy/proxy.h"

/* Answer and release the requests that no worker can serve. Moves the others to the front, and returns their number. */
uint32_t requests_reject_invalid(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

#endif
