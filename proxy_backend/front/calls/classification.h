/* Classification: returns the largest values of an output with their indexes and labels, instead of all values. */
#ifndef PYTRITON_FRONT_CLASSIFICATION_H
#define PYTRITON_FRONT_CLASSIFICATION_H

#include "calls/parts.h"

/* Replace an output, the response's at `index`, as requested by the client: BYTES, each element "value:index" or
 * "value:index:label".
 */
bool classification_make(AnswerParts *given, uint32_t index, AnswerOutput *output, Problem *problem);

#endif
