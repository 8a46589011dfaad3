#include "calls/chain_seal.h"

#include "base/json.h"
#include "base/sha256.h"
#include "wire/msgpack.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The key comes from tritonserver's environment; the dispatcher generated it. */
void chain_seal_compute(const char *encoded, size_t size, char seal[SEAL + 1])
{
    static const char hexadecimal[] = "0123456789abcdef";
    const char *key = getenv(KEY_VARIABLE);
    uint8_t digest[SHA256_DIGEST];
    hmac_sha256(key ? key : "", encoded, size, digest);
    for (int i = 0; i < SEAL; i++)
        seal[i] = hexadecimal[digest[i / 2] >> (i % 2 ? 0 : 4) & 15];
    seal[SEAL] = 0;
}

bool chain_seal_is_valid(const char *value)
{
    char seal[SEAL + 1];
    unsigned different = 0;
    size_t size = strlen(value);
    if (size < SEAL)
        return false;
    chain_seal_compute(value + SEAL, size - SEAL, seal);
    for (int i = 0; i < SEAL; i++) /* compare all bytes, in constant time */
        different |= (unsigned)(seal[i] ^ value[i]);
    return different == 0;
}

bool chain_has_worker(const char *value, const char *worker, Buffer *waiting, uint32_t *count)
{
    Json chain = {value + SEAL, value + strlen(value)};
    JsonMember link, part;
    bool found = false;
    for (bool more = json_first_element(chain, &link); more; more = json_next_element(chain, &link)) {
        char *name = NULL; /* a link is [model, worker] */
        if (json_first_element(link.value, &part) && json_next_element(link.value, &part))
            name = json_string(part.value);
        if (name && *name) {
            found |= strcmp(name, worker) == 0;
            msgpack_put_string(waiting, name);
            ++*count;
        }
        free(name);
    }
    return found;
}
