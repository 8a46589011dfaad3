/* The pool of calls. */
#ifndef PYTRITON_FRONTEND_CALLS_POOL_H
#define PYTRITON_FRONTEND_CALLS_POOL_H

#include "calls/call.h"

struct CallState;

const CallsSettings *calls_settings_of(const Calls *calls);
/* The last reference is gone. */
void calls_release(struct CallState *state);
/* Increment or decrement calls_running. */
void calls_count(bool more);

#endif
