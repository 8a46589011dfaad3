/* A keyed digest of bytes that are added piece by piece (SipHash-2-4 with 128 bits). Without the key, nobody can find
 * two inputs with the same digest.
 */
#ifndef PYTRITON_FRONTEND_BASE_DIGEST_H
#define PYTRITON_FRONTEND_BASE_DIGEST_H

#include "common/slice.h"

typedef struct {
    uint64_t v[4];
    uint64_t tail; /* the last size % 8 bytes */
    uint64_t size;
} Digest;

void digest_begin(Digest *digest, const uint64_t key[2]);
void digest_put(Digest *digest, const void *bytes, size_t size);
/* Add a text with its size, so that different sequences of texts never add the same bytes. */
void digest_put_text(Digest *digest, Slice text);
/* Returns the digest of all bytes added so far. */
void digest_end(const Digest *digest, uint64_t value[2]);

#endif
