/* Where calls come from and go to. */
#ifndef PYTRITON_FRONT_POOL_H
#define PYTRITON_FRONT_POOL_H

#include "calls/call.h"

struct CallParts;

const CallsSettings *calls_settings_of(const Calls *calls);
/* The last reference has gone. */
void calls_give_back(struct CallParts *parts);
/* What the core has is one more, or one less, of calls_running. */
void calls_count(bool more);

#endif
