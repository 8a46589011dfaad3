/* Parameters of requests and responses, which are objects of JSON on lanes. */
#ifndef PYTRITON_PARAMETERS_H
#define PYTRITON_PARAMETERS_H

#include "base/buffer.h"
#include "base/text.h"
#include "triton/api.h"

/* Add one parameter, as Triton gives it, to an object of JSON that is being written: begin with "{", end with "}". */
void put_parameter(Buffer *json, const char *key, int type, const void *value);
/* Give a response the parameters of an object of JSON. */
void set_response_parameters(TRITONBACKEND_Response *response, Text object);

#endif
