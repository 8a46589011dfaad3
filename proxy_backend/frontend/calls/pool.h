/* The pool of calls. */
#ifndef PYTRITON_FRONTEND_CALLS_POOL_H
#define PYTRITON_FRONTEND_CALLS_POOL_H

#include "calls/call.h"

struct CallState;

const CallsSettings *calls_settings_of(const Calls *calls);
/* Return a call to the pool after its last reference was dropped. */
void calls_release(struct CallState *state);
/* Increment or decrement the result of calls_running. */
void calls_count(bool more);

#endif
