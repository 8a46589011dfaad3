/* The check of a call's chain, and the dispatcher requests that it needs: see proxy_backend/python_proxy/chains.py. */
#ifndef PYTRITON_BACKEND_CALLS_CALL_CHAIN_H
#define PYTRITON_BACKEND_CALLS_CALL_CHAIN_H
#include "common/buffer.h"
#include "calls/call_message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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

/* The environment variable of tritonserver that holds the seal key (pytriton/_protocol/calls/call_messages.py). */
#define KEY_VARIABLE "PYTRITON_CALLS_KEY"
enum { SEAL = 32 };

/* Returns whether a parameter's value is a chain that one of tritonserver's proxies has sealed. */
bool chain_seal_is_valid(const char *value);
/* Returns whether a worker is in a sealed chain. Appends the chain's workers to `waiting` as MessagePack strings, and
 * counts them.
 */
bool chain_has_worker(const char *value, const char *worker, Buffer *waiting, uint32_t *count);

#endif
