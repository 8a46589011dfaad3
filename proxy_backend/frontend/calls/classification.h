/* Classification: returns the largest values of an output with their indexes and labels, instead of all values. */
#ifndef PYTRITON_FRONTEND_CALLS_CLASSIFICATION_H
#define PYTRITON_FRONTEND_CALLS_CLASSIFICATION_H

#include "calls/call_internal.h"

/* Replace an output, the response's at `index`, as requested by the client: BYTES, each element "value:index" or
 * "value:index:label".
 */
bool classification_make(ResponseState *given, uint32_t index, ResponseOutput *output, Problem *problem);

#endif
