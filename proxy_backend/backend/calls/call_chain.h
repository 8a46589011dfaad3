/* Checks the chain of a call, with the requests to the dispatcher that this needs. See
 * proxy_backend/python_proxy/chains.py.
 */
#ifndef PYTRITON_BACKEND_CALLS_CALL_CHAIN_H
#define PYTRITON_BACKEND_CALLS_CALL_CHAIN_H
#include "common/buffer.h"
#include "calls/call_message.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the value of CHAIN_PARAMETER for a call, for free(), or NULL without memory. */
char *chain_encode(const CallMessage *call);
/* Returns NULL if the call is allowed, otherwise the reason why not, for free(). May ask the dispatcher. */
char *chain_check(const CallMessage *call, const char *endpoint);
/* Report the models that a worker has been waiting for: `count` MessagePack strings. `proxy` is the name of the
 * reporting proxy. `reply` receives an array of the models that can never answer; free it with buffer_free. Returns
 * the error to give to calls of these models, for free(), or NULL if there are none.
 */
char *chain_report_waiting(
    const char *endpoint, const char *proxy, const char *worker, const Buffer *models, uint32_t count, Buffer *reply);
/* Ask the dispatcher to load a model that Triton lacks. Returns whether the model is now loaded. */
bool chain_load_model(const CallMessage *call, const char *endpoint);

/* The environment variable of tritonserver that contains the sealing key (pytriton/_protocol/calls/call_messages.py).
 */
#define KEY_VARIABLE "PYTRITON_CALLS_KEY"
enum { SEAL = 32 };

/* Returns whether a parameter's value is a chain that was sealed with the key. */
bool chain_seal_is_valid(const char *value);
/* Returns whether a worker is in a sealed chain. Appends all workers of the chain to `waiting` as MessagePack strings,
 * and adds their number to `count`.
 */
bool chain_has_worker(const char *value, const char *worker, Buffer *waiting, uint32_t *count);

#endif
