/* The answers of a call, from the core's responses. */
#ifndef PYTRITON_FRONTEND_CALLS_RESPONSES_H
#define PYTRITON_FRONTEND_CALLS_RESPONSES_H

#include "calls/call_internal.h"

/* The core's callback; `userp` is a CallState. */
void responses_complete(TRITONSERVER_InferenceResponse *core_response, const uint32_t flags, void *userp);
/* Answer a call without passing it to the core. Takes the response over. */
void responses_deliver_cached(CallState *state, CachedResponse *core_response);

#endif
