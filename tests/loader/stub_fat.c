/* A library whose device code was moved out: two empty containers, each with its wrapper. What the
 * wrappers point at when its constructor runs is what it would register. */
#include <stdint.h>

struct container {
    uint32_t magic;
    uint16_t version, header_size;
    uint64_t size;
};

struct wrapper {
    uint32_t magic, version;
    const struct container *data;
    void *more;
};

struct container empty[2] = {{0xba55ed50, 1, 16, 0}, {0xba55ed50, 1, 16, 0}};
#ifndef WRITABLE
#define WRITABLE __attribute__((section(".data")))
#endif
WRITABLE struct wrapper wrappers[2] = {{0x466243b1, 1, &empty[0], 0},
                                       {0x466243b1, 1, &empty[1], 0}};

/* These are no wrappers, though they point at containers. */
struct wrapper decoys[2] = {{0, 1, &empty[0], 0}, {0, 1, &empty[1], 0}};

static const struct container *registered[2];

/* Of the CUDA runtime, if the process has one. */
__attribute__((weak)) void **__cudaRegisterFatBinary(void *wrapper);

__attribute__((constructor)) static void register_all(void) {
    for (int i = 0; i < 2; i++) {
        registered[i] = wrappers[i].data;
        if (__cudaRegisterFatBinary) {
            __cudaRegisterFatBinary(&wrappers[i]);
        }
    }
}

/* The letter that the first image of a container is made of; '-' when it is empty, and '?' when it
 * is not a container. */
__attribute__((visibility("default"))) int first_letter(int index);

int first_letter(int index) {
    const struct container *found = registered[index];
    if (found->magic != empty[0].magic || found->version != 1 || found->header_size != 16) {
        return '?';
    }
    return found->size == 0 ? '-' : ((const char *)found)[16 + 64];
}
