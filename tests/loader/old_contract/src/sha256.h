/* SHA-256 (FIPS 180-4), so that an index, or a whole pack, can be held against its digest. */
#ifndef ARCHSPLIT_SHA256_H
#define ARCHSPLIT_SHA256_H

#include <stddef.h>
#include <stdint.h>

void sha256(const uint8_t *bytes, size_t length, uint8_t digest[32]);

#endif
