/* The pool of calls. */
#ifndef PYTRITON_FRONT_POOL_H
#define PYTRITON_FRONT_POOL_H

#include "calls/call.h"

struct CallParts;

const CallsSettings *calls_settings_of(const Calls *calls);
/* The last reference is gone. */
void calls_give_back(struct CallParts *parts);
/* Increment or decrement calls_running. */
void calls_count(bool more);

#endif
