/* Parameters of requests and responses, which are JSON objects on lanes. */
#ifndef PYTRITON_BACKEND_TRITON_PARAMETERS_H
#define PYTRITON_BACKEND_TRITON_PARAMETERS_H

#include "common/buffer.h"
#include "common/slice.h"
#include "triton/api.h"

/* Append a parameter to a JSON object. The caller writes the braces. */
void put_parameter(Buffer *json, const char *key, int type, const void *value);
/* Set the parameters of a response from a JSON object. */
void set_response_parameters(TRITONBACKEND_Response *response, Slice object);

#endif
