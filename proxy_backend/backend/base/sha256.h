/* HMAC with SHA-256 (FIPS 180-4), which seals call chains. */
#ifndef PYTRITON_BACKEND_BASE_SHA256_H
#define PYTRITON_BACKEND_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_DIGEST = 32 };

/* `key` is a string of at most 64 bytes. */
void hmac_sha256(const char *key, const void *bytes, size_t size, uint8_t digest[SHA256_DIGEST]);

#endif
