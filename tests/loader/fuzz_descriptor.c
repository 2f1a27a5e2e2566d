/* Feeds damaged plugins to the descriptor reader, from a file in memory as it does from the disk.
 *
 * With -fsanitize=fuzzer it is a libFuzzer target. Without, it is a program:
 *
 *     fuzz_descriptor PLUGIN ITERATIONS SEED   mutate the plugin that often
 *     fuzz_descriptor PLUGIN                   cut the plugin off at each of its bytes
 *
 * It must be compiled with sanitizers: they are what fails. */
#define _GNU_SOURCE /* memfd_create */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef LIBFUZZER
#include "fuzz_memory.h"
#endif

#include "../../plugin_loader/src/descriptor.h"
#include "../../plugin_loader/src/error.h"

static unsigned long verdicts[ARCHSPLIT_DRIVER_TOO_OLD + 1];

static archsplit_verdict read_bytes(const uint8_t *bytes, size_t length, uint64_t claimed) {
#ifdef LIBFUZZER
    enum { memory = -1 };
    fuzz_bytes = bytes;
    fuzz_length = length;
#else
    static int memory = -1;
    if (memory < 0) {
        memory = memfd_create("plugin", MFD_CLOEXEC);
    }
    if (ftruncate(memory, 0) != 0 || pwrite(memory, bytes, length, 0) != (ssize_t)length) {
        abort();
    }
#endif
    const struct os_file file = {.descriptor = memory, .size = claimed};
    struct descriptor descriptor;
    archsplit_verdict verdict = descriptor_read(&file, &descriptor);
    verdicts[verdict]++;
    if (verdict == ARCHSPLIT_ACCEPTED &&
        (descriptor.target_count == 0 || descriptor.target_count > ARCHSPLIT_MAX_TARGETS ||
         strlen(descriptor.package) == 0 || strlen(descriptor.version) == 0)) {
        abort();
    }
    if (verdict != ARCHSPLIT_ACCEPTED && strlen(error_text()) == 0) {
        abort();
    }
    return verdict;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    struct descriptor descriptor;
    descriptor_decode(bytes, (uint32_t)length, ARCHSPLIT_SHAPE_LIBRARY, &descriptor);
    read_bytes(bytes, length, length);
    read_bytes(bytes, length, 2 * length); /* a file that became shorter after it was opened */
    return 0;
}

#ifndef LIBFUZZER
enum { SIZE = 512 }; /* of the descriptors in stub plugins */

static uint64_t state;

static uint32_t random_below(uint32_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % limit;
}

/* Where the fields are that decide: the ELF header, the program headers, the note. */
static size_t interesting_place(size_t length, size_t descriptor) {
    switch (random_below(4)) {
    case 0:
        return random_below(64);
    case 1:
        return 64 + random_below(56 * 12);
    case 2:
        return descriptor - 24 + random_below(200);
    default:
        return random_below((uint32_t)length);
    }
}

static void mutate(uint8_t *bytes, size_t length, size_t descriptor) {
    static const uint64_t values[] = {0,         1,          4,          8,          0x7f,
                                      0xff,      0x7fffffff, 0xffffffff, 1ull << 63, ~0ull,
                                      ~0ull - 3, 112,        512,        8192};
    uint32_t changes = 1 + random_below(4);
    for (uint32_t i = 0; i < changes; i++) {
        size_t place = interesting_place(length, descriptor);
        size_t width = (size_t)1 << random_below(4);
        uint64_t value = random_below(2) ? values[random_below(sizeof values / sizeof *values)]
                                         : (uint64_t)random_below(0xffffffff) >> random_below(32);
        if (place + width <= length) {
            memcpy(bytes + place, &value, width);
        }
    }
}

static const uint8_t *copy(const uint8_t *bytes, size_t length) {
    uint8_t *exact = malloc(length + (length == 0)); /* so that the sanitizer knows its end */
    if (exact == NULL) {
        abort();
    }
    return memcpy(exact, bytes, length);
}

static void fuzz_once(const uint8_t *original, size_t length, size_t descriptor) {
    static uint8_t damaged[1 << 20];
    memcpy(damaged, original, length);
    mutate(damaged, length, descriptor);
    size_t cut = random_below(8) ? length : random_below((uint32_t)length);
    LLVMFuzzerTestOneInput(damaged, cut);
    struct descriptor decoded;
    size_t size = random_below(8) ? SIZE : random_below(SIZE);
    const uint8_t *exact = copy(damaged + descriptor, size);
    descriptor_decode(exact, (uint32_t)size, ARCHSPLIT_SHAPE_LIBRARY, &decoded);
    free((void *)(uintptr_t)exact);
}

static int cut_everywhere(const uint8_t *original, size_t length) {
    for (size_t cut = 0; cut < length; cut++) {
        if (read_bytes(original, cut, cut) != ARCHSPLIT_TRUNCATED) {
            fprintf(stderr, "cut off at %zu: %s\n", cut, error_text());
            return 1;
        }
        read_bytes(original, cut, length);
    }
    return 0;
}

int main(int count, char **arguments) {
    static uint8_t original[1 << 20];
    FILE *file = count > 1 ? fopen(arguments[1], "rb") : NULL;
    size_t length = file != NULL ? fread(original, 1, sizeof original, file) : 0;
    if (length == 0 || read_bytes(original, length, length) != ARCHSPLIT_ACCEPTED) {
        fprintf(stderr, "no plugin to begin with: %s\n", error_text());
        return 1;
    }
    fclose(file);
    if (count == 2) {
        return cut_everywhere(original, length);
    }
    const uint8_t *name = memmem(original, length, "archsplit", 10);
    unsigned long rounds = strtoul(arguments[2], NULL, 10);
    state = strtoull(arguments[3], NULL, 10);
    for (unsigned long i = 0; i < rounds; i++) {
        fuzz_once(original, length, (size_t)(name - original) + 12);
    }
    printf("%lu inputs;", rounds);
    for (uint32_t i = 0; i <= ARCHSPLIT_DRIVER_TOO_OLD; i++) {
        printf(" %s %lu", archsplit_verdict_name(i), verdicts[i]);
    }
    printf("\n");
    return 0;
}
#endif
