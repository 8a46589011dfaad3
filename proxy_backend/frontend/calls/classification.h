/* Classification: returns the largest values of an output with indexes and labels instead of all values. */
#ifndef PYTRITON_FRONTEND_CALLS_CLASSIFICATION_H
#define PYTRITON_FRONTEND_CALLS_CLASSIFICATION_H

#include "calls/call_internal.h"

/* Replace the output at `index` of a response with its classification, as the client requested. The result has the type
 * BYTES, with elements "value:index" or "value:index:label".
 */
bool classification_make(ResponseState *given, uint32_t index, ResponseOutput *output, Problem *problem);

#endif
