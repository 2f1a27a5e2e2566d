/* What all readers of a plugin's bytes need, which may say anything. */
#ifndef ARCHSPLIT_UNTRUSTED_H
#define ARCHSPLIT_UNTRUSTED_H

#include <inttypes.h>
#include <stdbool.h>

#include "../include/plugin_loader.h"
#include "detail.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "descriptors and the ELF files around them are read as they lie: little-endian"
#endif

#define REINSTALL "; install the plugin again"

/* Whether the bytes [offset, offset + length) lie in the first `size` bytes. */
static inline bool fits(uint64_t offset, uint64_t length, uint64_t size) {
    return offset <= size && length <= size - offset;
}

static inline archsplit_verdict malformed(const char *what, uint64_t found, const char *expected) {
    detail_set("is malformed: %s is %" PRIu64 ", expected %s" REINSTALL, what, found, expected);
    return ARCHSPLIT_MALFORMED;
}

#endif
