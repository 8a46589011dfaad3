#include "base/digest.h"

#include "base/siphash.h"

static void put_word(Digest *digest, uint64_t word)
{
    digest->v[3] ^= word;
    sip_round(digest->v);
    sip_round(digest->v);
    digest->v[0] ^= word;
}

void digest_begin(Digest *digest, const uint64_t key[2])
{
    *digest = (Digest){0};
    sip_init(digest->v, key);
    digest->v[1] ^= 0xee;
}

void digest_put(Digest *digest, const void *bytes, size_t size)
{
    const unsigned char *at = bytes, *end = at + size;
    unsigned used = digest->size % 8;
    digest->size += size;
    while (at < end && used) {
        digest->tail |= (uint64_t)*at++ << (8 * used);
        used = (used + 1) % 8;
        if (used == 0) {
            put_word(digest, digest->tail);
            digest->tail = 0;
        }
    }
    for (uint64_t word; (size_t)(end - at) >= sizeof word; at += sizeof word) {
        memcpy(&word, at, sizeof word);
        put_word(digest, word);
    }
    for (; at < end; used++)
        digest->tail |= (uint64_t)*at++ << (8 * used);
}

void digest_put_text(Digest *digest, Slice text)
{
    uint64_t size = text.size;
    digest_put(digest, &size, sizeof size);
    digest_put(digest, text.start, text.size);
}

static uint64_t folded(const uint64_t v[4])
{
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void digest_end(const Digest *digest, uint64_t value[2])
{
    Digest last = *digest;
    put_word(&last, last.tail | last.size << 56);
    last.v[2] ^= 0xee;
    for (int i = 0; i < 4; i++)
        sip_round(last.v);
    value[0] = folded(last.v);
    last.v[1] ^= 0xdd;
    for (int i = 0; i < 4; i++)
        sip_round(last.v);
    value[1] = folded(last.v);
}
