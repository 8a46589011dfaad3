/* The check of a call's chain, and the questions to the dispatcher that it needs: see proxy_backend/chains.py. */
#ifndef PYTRITON_CALL_CHAIN_H
#define PYTRITON_CALL_CHAIN_H

#include "calls/call_message.h"

/* The value of CHAIN_PARAMETER, for free(). */
char *chain_sealed(const CallMessage *call);
/* Returns NULL if a call may be made, else the reason against it, for free(). It may ask the dispatcher. */
char *chain_refused(const CallMessage *call, const char *endpoint);
/* Tell the dispatcher which models a worker has waited for: `count` strings of MessagePack. `proxy`: who tells.
 * `reply`, for buffer_free, has an array of those that it waits for in vain. Returns why, for free(), or NULL. */
char *chain_stuck(
    const char *endpoint, const char *proxy, const char *worker, const Buffer *models, uint32_t count, Buffer *reply);
/* Ask for a model that Triton does not have: the dispatcher has it loaded if it keeps one of that name. Returns whether it is there now. */
bool chain_comes(const CallMessage *call, const char *endpoint);

#endif
