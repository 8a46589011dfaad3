/* The rounds of SipHash (https://www.aumasson.jp/siphash/siphash.pdf), which name_table.c and digest.c use. */
#ifndef PYTRITON_FRONTEND_BASE_SIPHASH_H
#define PYTRITON_FRONTEND_BASE_SIPHASH_H

#include <stdint.h>

static inline uint64_t sip_rotated(uint64_t value, unsigned by)
{
    return value << by | value >> (64 - by);
}

static inline void sip_round(uint64_t v[4])
{
    v[0] += v[1];
    v[1] = sip_rotated(v[1], 13) ^ v[0];
    v[0] = sip_rotated(v[0], 32);
    v[2] += v[3];
    v[3] = sip_rotated(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = sip_rotated(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = sip_rotated(v[1], 17) ^ v[2];
    v[2] = sip_rotated(v[2], 32);
}

static inline void sip_init(uint64_t v[4], const uint64_t key[2])
{
    v[0] = key[0] ^ 0x736f6d6570736575u;
    v[1] = key[1] ^ 0x646f72616e646f6du;
    v[2] = key[0] ^ 0x6c7967656e657261u;
    v[3] = key[1] ^ 0x7465646279746573u;
}

#endif
