/* Batches of models that answer each request exactly once. */
#ifndef PYTRITON_BACKEND_BATCHES_BATCH_H
#define PYTRITON_BACKEND_BATCHES_BATCH_H

#include "proxy/proxy.h"

/* Let workers answer the requests, and return them to tritonserver. */
void batch_execute(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count);

/* Answer and return the requests with an error: no worker serves the model at the moment. */
void batch_refuse(Proxy *proxy, TRITONBACKEND_Request **requests, uint32_t count, const char *text);

#endif
