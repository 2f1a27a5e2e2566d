/* Random damage to a core.json, read under sanitizers. With -fsanitize=fuzzer it is a libFuzzer
 * target. Without, it is a program:
 *
 *     fuzz_core_file FOLDER ROUNDS SEED
 *
 * The file is read from FOLDER, damaged in memory, and written back for each round. */
#define _GNU_SOURCE

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archsplit/plugin_loader.h"

#ifdef LIBFUZZER
#include "fuzz_memory.h"
#endif

/* Read the core; true if it was accepted. Every text of an accepted one is there, and ends. */
static bool read_core(const char *folder) {
    archsplit_core *core;
    archsplit_status status = archsplit_core_read(folder, &core);
    bool accepted = status == ARCHSPLIT_OK;
    if (accepted ? strlen(core->package) == 0 || strlen(core->build_id) != 64 ||
                       strlen(core->folders[0]) == 0
                 : status != ARCHSPLIT_BAD_CORE || *archsplit_last_error() == '\0') {
        abort();
    }
    archsplit_core_free(core);
    return accepted;
}

#ifdef LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    fuzz_bytes = bytes;
    fuzz_length = length;
    read_core("/");
    return 0;
}
#else
static void write_all(int target, const void *text, size_t length) {
    if (pwrite(target, text, length, 0) != (ssize_t)length || ftruncate(target, (off_t)length)) {
        abort();
    }
}

static uint64_t state;

static uint32_t random_below(uint32_t end) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % end;
}

/* Pieces that mean something in JSON, so that damage gets past the first byte of a value. */
static const char *const pieces[] = {"\"",   "{",  "}",     "[",          "]",
                                     ":",    ",",  "\\u",   "\\ud83d",    "\\ude00",
                                     "null", "-1", "1e+9",  "\xc2\x80",   "\xf4\x8f\xbf\xbf",
                                     "\\",   "0",  "sm_90", "[[[[[[[[[[", "\\u0000"};

static size_t damage(char *text, size_t length, size_t room) {
    for (uint32_t count = 1 + random_below(3); count > 0; count--) {
        size_t at = random_below((uint32_t)length);
        const char *piece = pieces[random_below(sizeof pieces / sizeof *pieces)];
        size_t more = strlen(piece);
        switch (random_below(4)) {
        case 0:
            text[at] = (char)random_below(256);
            break;
        case 1:
            length = at + 1;
            break;
        case 2:
            if (length + more < room) {
                memmove(text + at + more, text + at, length - at);
                memcpy(text + at, piece, more);
                length += more;
            }
            break;
        default:
            memcpy(text + at, piece, more < length - at ? more : length - at);
        }
    }
    return length;
}

int main(int count, char **arguments) {
    static char original[1 << 16], text[1 << 16];
    char path[4096];
    if (count != 4) {
        return 2;
    }
    snprintf(path, sizeof path, "%s/core.json", arguments[1]);
    FILE *file = fopen(path, "rb");
    size_t length = file != NULL ? fread(original, 1, sizeof original, file) : 0;
    if (length == 0) {
        return 2;
    }
    fclose(file);
    /* Open all the time: a file that is emptied and closed is written to the disk each time. */
    int target = open(path, O_WRONLY);
    unsigned long accepted = 0, rounds = strtoul(arguments[2], NULL, 10);
    state = strtoull(arguments[3], NULL, 10);
    for (unsigned long round = 0; round < rounds; round++) {
        memcpy(text, original, length);
        size_t now = damage(text, length, sizeof text);
        write_all(target, text, now);
        accepted += read_core(arguments[1]);
    }
    printf("%lu inputs, %lu accepted\n", rounds, accepted);
    return 0;
}
#endif
