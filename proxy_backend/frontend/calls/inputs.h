/* The inputs of a call: their shapes, sizes and bytes. call.h has the protocols' interface. */
#ifndef PYTRITON_FRONTEND_CALLS_INPUTS_H
#define PYTRITON_FRONTEND_CALLS_INPUTS_H

#include "base/problem.h"
#include "calls/call_internal.h"

/* The maximum number of dimensions of an input. */
enum { INPUT_DIMS = 64 };

/* End the current input, and check that its bytes are complete. */
bool inputs_end(CallState *state, Problem *problem);

#endif
