/* The body of an inference request: JSON, and the binary tensors that may follow it. */
#ifndef PYTRITON_FRONT_HTTP_INFER_REQUEST_H
#define PYTRITON_FRONT_HTTP_INFER_REQUEST_H

#include "calls/call.h"
#include "net/limits.h"

/* Flags of a CallTensor that is an output. */
enum { OUTPUT_BINARY = 1, OUTPUT_JSON = 2 };

/* Put what a request says into a call, whose model is known. `binary_output`: what the request wants where an output does not say otherwise. */
bool http_infer_read(Call *call, Slice json, Slice binary, const Limits *limits, bool *binary_output, Problem *problem);

#endif
