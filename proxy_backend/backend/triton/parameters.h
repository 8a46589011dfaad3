/* Parameters of requests and responses, which lanes carry as JSON objects. */
#ifndef PYTRITON_BACKEND_TRITON_PARAMETERS_H
#define PYTRITON_BACKEND_TRITON_PARAMETERS_H

#include "common/buffer.h"
#include "common/slice.h"
#include "triton/api.h"

/* Add one Triton parameter to a JSON object that is being written: begin with "{", end with "}". */
void put_parameter(Buffer *json, const char *key, int type, const void *value);
/* Set the parameters of a response from a JSON object. */
void set_response_parameters(TRITONBACKEND_Response *response, Slice object);

#endif
