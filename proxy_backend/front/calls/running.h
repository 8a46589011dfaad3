/* A call in the core: call_start and call_cancel of call.h. */
#ifndef PYTRITON_FRONT_RUNNING_H
#define PYTRITON_FRONT_RUNNING_H

#include "calls/parts.h"

/* The core has released its request, or delivered its last answer. */
void running_part_done(CallParts *parts);

#endif
