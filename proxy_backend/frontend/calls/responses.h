/* Converts the core's responses to answers of a call. */
#ifndef PYTRITON_FRONTEND_CALLS_RESPONSES_H
#define PYTRITON_FRONTEND_CALLS_RESPONSES_H

#include "calls/call_internal.h"

/* The core's callback for responses. `userp` is a CallState. */
void responses_complete(TRITONSERVER_InferenceResponse *core_response, const uint32_t flags, void *userp);
/* Answer a call from the cache instead of the core. Takes ownership of the response. */
void responses_deliver_cached(CallState *state, CachedResponse *core_response);

#endif
