/* Shapes, sizes and bytes of a call's inputs. The protocols use the functions in call.h. */
#ifndef PYTRITON_FRONTEND_CALLS_INPUTS_H
#define PYTRITON_FRONTEND_CALLS_INPUTS_H

#include "base/problem.h"
#include "calls/call_internal.h"

/* Maximum number of dimensions of an input. */
enum { INPUT_DIMS = 64 };

/* Complete the current input, and check that it has all its bytes. */
bool inputs_end(CallState *state, Problem *problem);

#endif
