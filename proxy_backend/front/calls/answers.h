/* The answers of a call, from the core's responses. */
#ifndef PYTRITON_FRONT_ANSWERS_H
#define PYTRITON_FRONT_ANSWERS_H

#include "calls/parts.h"

/* The core's callback; `userp` is a CallParts. */
void answers_complete(TRITONSERVER_InferenceResponse *response, const uint32_t flags, void *userp);
/* Answer a call without passing it to the core. Takes the response over. */
void answers_give_cached(CallParts *parts, CachedResponse *response);

#endif
