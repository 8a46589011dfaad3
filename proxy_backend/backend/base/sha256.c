#include "base/sha256.h"

#include <string.h>

enum { BLOCK = 64 };

/* SHA-256 (FIPS 180-4). */
typedef struct {
    uint32_t state[8];
    uint8_t block[BLOCK];
    uint64_t size;
} Sha256;

static const uint32_t rounds[64] = {0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
    0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152,
    0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138,
    0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70,
    0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5,
    0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa,
    0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t value, int by)
{
    return value >> by | value << (32 - by);
}

static void digest_block(Sha256 *hash)
{
    uint32_t words[64], s[8];
    for (size_t i = 0; i < 16; i++)
        words[i] = (uint32_t)hash->block[4 * i] << 24 | (uint32_t)hash->block[4 * i + 1] << 16 |
            (uint32_t)hash->block[4 * i + 2] << 8 | hash->block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = words[i - 15], b = words[i - 2];
        words[i] = words[i - 16] + words[i - 7] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) +
            (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t one = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) +
            ((s[4] & s[5]) ^ (~s[4] & s[6])) + rounds[i] + words[i];
        uint32_t two = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) +
            ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++)
        hash->state[i] += s[i];
}

static void digest_begin(Sha256 *hash)
{
    *hash = (Sha256){
        .state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void digest_add(Sha256 *hash, const void *bytes, size_t size)
{
    for (const uint8_t *next = bytes; size; size--) {
        hash->block[hash->size++ % BLOCK] = *next++;
        if (hash->size % BLOCK == 0)
            digest_block(hash);
    }
}

static void digest_end(Sha256 *hash, uint8_t digest[SHA256_DIGEST])
{
    uint64_t bits = hash->size * 8;
    uint8_t byte = 0x80;
    do {
        digest_add(hash, &byte, 1);
        byte = 0;
    } while (hash->size % BLOCK != BLOCK - 8);
    for (int i = 7; i >= 0; i--) {
        byte = (uint8_t)(bits >> (8 * i));
        digest_add(hash, &byte, 1);
    }
    for (int i = 0; i < SHA256_DIGEST; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (8 * (3 - i % 4)));
}

/* RFC 2104. */
void hmac_sha256(const char *key, const void *bytes, size_t size, uint8_t digest[SHA256_DIGEST])
{
    uint8_t inner[BLOCK], outer[BLOCK];
    size_t length = strlen(key);
    for (size_t i = 0; i < BLOCK; i++) {
        uint8_t byte = i < length ? (uint8_t)key[i] : 0;
        inner[i] = byte ^ 0x36;
        outer[i] = byte ^ 0x5c;
    }
    Sha256 hash;
    digest_begin(&hash);
    digest_add(&hash, inner, BLOCK);
    digest_add(&hash, bytes, size);
    digest_end(&hash, digest);
    digest_begin(&hash);
    digest_add(&hash, outer, BLOCK);
    digest_add(&hash, digest, SHA256_DIGEST);
    digest_end(&hash, digest);
}
