/* The check of a call's chain, and the dispatcher requests that it needs: see proxy_backend/chains.py. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_CHAIN_H
#define PYTRITON_BACKEND_CALLS_CALL_CHAIN_H

#include "calls/call_message.h"

/* The value of CHAIN_PARAMETER, for free(). */
char *chain_encode(const CallMessage *call);
/* Returns NULL if the call is allowed, else the reason against it, for free(). It may ask the dispatcher. */
char *chain_check(const CallMessage *call, const char *endpoint);
/* Report to the dispatcher which models a worker has waited for: `count` MessagePack strings. `proxy`: the reporting
 * proxy. `reply`, for buffer_free, receives an array of the models that can never answer. Returns why, for free(), or
 * NULL.
 */
char *chain_report_waiting(
    const char *endpoint, const char *proxy, const char *worker, const Buffer *models, uint32_t count, Buffer *reply);
/* Ask for a model that Triton does not have: the dispatcher loads it if it keeps one of that name. Returns whether it
 * is loaded now.
 */
bool chain_load_model(const CallMessage *call, const char *endpoint);

#endif
