/* The inputs of a call: their shapes, their sizes, their bytes. call.h has what the protocols use. */
#ifndef PYTRITON_FRONT_INPUTS_H
#define PYTRITON_FRONT_INPUTS_H

#include "base/problem.h"
#include "calls/parts.h"

/* The dimensions that an input may have. */
enum { INPUT_DIMS = 64 };

/* End the input that was begun last: see whether it has all its bytes. */
bool inputs_end(CallParts *parts, Problem *problem);
/* How many elements a shape has. False, with the problem: a size is negative, or there are too many. */
bool inputs_elements(const char *name, const int64_t *shape, size_t dims, uint64_t *elements, Problem *problem);

#endif
