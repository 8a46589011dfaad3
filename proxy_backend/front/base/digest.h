/* A keyed digest of bytes that come piece by piece (SipHash-2-4 with 128 bits): without the key, nobody finds two inputs with the same digest. */
#ifndef PYTRITON_FRONT_DIGEST_H
#define PYTRITON_FRONT_DIGEST_H

#include "base/slice.h"

typedef struct {
    uint64_t v[4];
    uint64_t tail; /* the last bytes, of which there are size % 8 */
    uint64_t size;
} Digest;

void digest_begin(Digest *digest, const uint64_t key[2]);
void digest_put(Digest *digest, const void *bytes, size_t size);
/* A text and its size, so that no two sequences of texts are the same bytes. */
void digest_put_text(Digest *digest, Slice text);
/* The digest of all that was put. */
void digest_end(const Digest *digest, uint64_t value[2]);

#endif
