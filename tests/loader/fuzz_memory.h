/* Files of a fuzzer: one, in memory, because system calls would take most of the time. The linker
 * puts these functions in place of the loader's own (-Wl,--wrap=NAME). */
#ifndef FUZZ_MEMORY_H
#define FUZZ_MEMORY_H

#include <string.h>

#include "../../plugin_loader/src/os.h"

static const uint8_t *fuzz_bytes;
static size_t fuzz_length;

int __wrap_os_open(const char *path, struct os_file *file);
void __wrap_os_close(const struct os_file *file);
int __wrap_os_read(const struct os_file *file, uint64_t offset, void *buffer, size_t length);

int __wrap_os_open(const char *path, struct os_file *file) {
    (void)path;
    *file = (struct os_file){.descriptor = -1, .size = fuzz_length};
    return 0;
}

void __wrap_os_close(const struct os_file *file) {
    (void)file;
}

/* As pread: an offset behind the end reads nothing, and what is there was copied. */
int __wrap_os_read(const struct os_file *file, uint64_t offset, void *buffer, size_t length) {
    size_t left = offset < fuzz_length ? fuzz_length - (size_t)offset : 0;
    size_t copied = length < left ? length : left;
    (void)file;
    if (copied > 0) {
        memcpy(buffer, fuzz_bytes + offset, copied);
    }
    return copied == length ? 0 : OS_ENDED;
}

#endif
