/* Classification: instead of an output's values, the largest of them with their places and labels. */
#ifndef PYTRITON_FRONT_CLASSIFICATION_H
#define PYTRITON_FRONT_CLASSIFICATION_H

#include "calls/parts.h"

/* Make an output, the response's at `index`, what the client asked for: BYTES, each element "value:place" or "value:place:label". */
bool classification_make(AnswerParts *given, uint32_t index, AnswerOutput *output, Problem *problem);

#endif
