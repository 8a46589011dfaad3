/* The sealed chain that a model's call to another one carries. See proxy_backend/chains.py. */
#ifndef PYTRITON_SEALED_CHAIN_H
#define PYTRITON_SEALED_CHAIN_H

#include "base/buffer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The key of the seals, from tritonserver's environment (pytriton/_protocol/calls/call_chain.py). */
#define KEY_VARIABLE "PYTRITON_CALLS_KEY"
enum { SEAL = 32 };

/* The seal of an encoded chain: hexadecimal, with NUL. */
void chain_seal(const char *encoded, size_t size, char seal[SEAL + 1]);
/* Returns whether a parameter's value is a chain that one of tritonserver's proxies has sealed. */
bool chain_is_sealed(const char *value);
/* Whether a worker is in a sealed chain; the workers of the chain are added to `waiting` as strings of MessagePack,
 * and counted. */
bool chain_has(const char *value, const char *worker, Buffer *waiting, uint32_t *count);

#endif
