/* Checks for the readers of a plugin's bytes, which may have any values. */
#ifndef ARCHSPLIT_UNTRUSTED_H
#define ARCHSPLIT_UNTRUSTED_H

#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "../include/archsplit/plugin_loader.h"
#include "error.h"
#include "os.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "descriptors and the ELF files around them are read as they lie: little-endian"
#endif

#define REINSTALL "; install the plugin again"

/* True if the bytes [offset, offset + length) lie in the first `size` bytes. */
static inline bool fits(uint64_t offset, uint64_t length, uint64_t size) {
    return offset <= size && length <= size - offset;
}

static inline uint64_t aligned(uint64_t value, uint64_t alignment) {
    return (value + alignment - 1) & ~(alignment - 1);
}

static inline archsplit_verdict malformed(const char *what, uint64_t found, const char *expected) {
    error_set("is malformed: %s is %" PRIu64 ", expected %s" REINSTALL, what, found, expected);
    return ARCHSPLIT_MALFORMED;
}

/* A part that was there when the file was opened can't be read any more; `error` is os_read's. A
 * file server or a disk that fails says nothing about the plugin. */
static inline archsplit_verdict read_failed(int error, const char *what) {
    if (error == OS_ENDED) {
        error_set("became shorter while its %s was read" REINSTALL, what);
        return ARCHSPLIT_TRUNCATED;
    }
    error_set("can't be read: %s (its %s)", strerror(error), what);
    return ARCHSPLIT_UNREADABLE;
}

#endif
