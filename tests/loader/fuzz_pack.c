/* Feeds damaged device packs to the reader, from a file in memory as it does from the disk.
 *
 * With -fsanitize=fuzzer it is a libFuzzer target. Without, it is a program:
 *
 *     fuzz_pack PACK ITERATIONS SEED   mutate the pack that often
 *
 * The index's digest is made right again, because nothing behind it would be reached otherwise. It
 * must be compiled with sanitizers: they are what fails. */
#define _GNU_SOURCE /* memfd_create */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef LIBFUZZER
#include "fuzz_memory.h"
#endif

#include "../../plugin_loader/src/pack.h"
#include "../../plugin_loader/src/sha256.h"

enum { MOST = 1 << 20 };

static unsigned long accepted, refused;

static void mend(uint8_t *bytes, size_t length) {
    archsplit_pack_head head;
    if (length < sizeof head) {
        return;
    }
    memcpy(&head, bytes, sizeof head);
    head.file_size = length;
    size_t front = ((size_t)head.descriptor_size + 7) / 8 * 8 + head.index_size;
    size_t hashed = offsetof(archsplit_pack_head, digest) + sizeof head.digest;
    if (head.head_size >= sizeof head && head.head_size <= length &&
        front <= length - head.head_size) {
        memcpy(bytes, &head, sizeof head);
        sha256(bytes + hashed, head.head_size - hashed + front, head.digest);
    }
    memcpy(bytes, &head, sizeof head);
}

/* Look at everything that an accepted pack promises. */
static volatile uint8_t sum;

static void use(struct pack *pack, const uint8_t *bytes) {
    for (uint32_t i = 0; i < pack->head.library_count; i++) {
        const archsplit_pack_library *library = pack_library(pack, i);
        sum += pack_is_stub(pack, library, "libarchsplit_0000000000000000.so");
        sum += pack->index[library->name_offset + library->name_length - 1];
    }
    for (uint32_t i = 0; i < pack->head.image_count; i++) {
        const archsplit_pack_image *image = pack_image(pack, i);
        sum += bytes[image->offset];
        sum += bytes[image->offset + image->size - 1];
    }
    if (pack_match(pack, pack) != ARCHSPLIT_ACCEPTED) {
        abort();
    }
}

static void read_bytes(const uint8_t *bytes, size_t length, bool is_table) {
#ifdef LIBFUZZER
    enum { memory = -1 };
    fuzz_bytes = bytes;
    fuzz_length = length;
#else
    static int memory = -1;
    if (memory < 0) {
        memory = memfd_create("pack", MFD_CLOEXEC);
    }
    if (ftruncate(memory, 0) != 0 || pwrite(memory, bytes, length, 0) != (ssize_t)length) {
        abort();
    }
#endif
    const struct os_file file = {.descriptor = memory, .size = length};
    struct pack pack;
    struct descriptor descriptor;
    if (pack_read(&file, is_table, &pack, &descriptor) == ARCHSPLIT_ACCEPTED) {
        accepted++;
        if (!is_table) {
            use(&pack, bytes);
        }
        pack_free(&pack);
    } else {
        refused++;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    /* A copy of exactly this size: what is read behind it is seen. */
    uint8_t *copy = malloc(length + 1);
    memcpy(copy, bytes, length);
    read_bytes(copy, length, false);
    mend(copy, length);
    read_bytes(copy, length, false);
    read_bytes(copy, length, true);
    free(copy);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state;

static uint32_t random_below(uint32_t limit) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % limit;
}

static void mutate(uint8_t *bytes, size_t *length, size_t front) {
    static const uint32_t odd[] = {0, 1, 7, 8, 16, 64, 0xffff, 0x7fffffff, 0xffffffff};
    for (uint32_t times = 1 + random_below(3); times > 0; times--) {
        size_t at = random_below((uint32_t)front) / 4 * 4;
        uint32_t value = odd[random_below(sizeof odd / sizeof *odd)];
        if (random_below(2) == 0) {
            bytes[at] ^= (uint8_t)(1u << random_below(8));
        } else {
            memcpy(bytes + at, &value, sizeof value);
        }
    }
    if (random_below(16) == 0) {
        *length = random_below((uint32_t)*length);
    }
}

int main(int argc, char **argv) {
    static uint8_t original[MOST], bytes[MOST];
    FILE *file = argc == 4 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL) {
        return 2;
    }
    size_t length = fread(original, 1, sizeof original, file);
    fclose(file);
    archsplit_pack_head head;
    memcpy(&head, original, sizeof head);
    size_t front = head.head_size + head.descriptor_size + head.index_size;
    state = strtoull(argv[3], NULL, 10);
    for (long i = strtol(argv[2], NULL, 10); i > 0; i--) {
        size_t changed = length;
        memcpy(bytes, original, length);
        mutate(bytes, &changed, front);
        LLVMFuzzerTestOneInput(bytes, changed);
    }
    printf("accepted %lu refused %lu\n", accepted, refused);
    return 0;
}
#endif
