/* Runs a call in the core: call_start and call_cancel of call.h. */
#ifndef PYTRITON_FRONTEND_CALLS_EXECUTION_H
#define PYTRITON_FRONTEND_CALLS_EXECUTION_H

#include "calls/call_internal.h"

/* Record that the core has released the request, or delivered the last answer. */
void call_part_done(CallState *state);

#endif
