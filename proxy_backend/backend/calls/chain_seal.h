/* The sealed chain that a model's call to another one carries. See proxy_backend/chains.py. */
#ifndef PYTRITON_BACKEND_CALLS_CHAIN_SEAL_H
#define PYTRITON_BACKEND_CALLS_CHAIN_SEAL_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The environment variable of tritonserver that holds the seal key (pytriton/_protocol/calls/call_chain.py). */
#define KEY_VARIABLE "PYTRITON_CALLS_KEY"
enum { SEAL = 32 };

/* Compute the seal of an encoded chain: hexadecimal, with NUL. */
void chain_seal_compute(const char *encoded, size_t size, char seal[SEAL + 1]);
/* Returns whether a parameter's value is a chain that one of tritonserver's proxies has sealed. */
bool chain_seal_is_valid(const char *value);
/* Returns whether a worker is in a sealed chain. Appends the chain's workers to `waiting` as MessagePack strings, and
 * counts them.
 */
bool chain_has_worker(const char *value, const char *worker, Buffer *waiting, uint32_t *count);

#endif
