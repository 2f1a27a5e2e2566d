/* Random damage to a core.json, read under sanitizers:
 *
 *     fuzz_core_file FOLDER ROUNDS SEED
 *
 * The file is read from FOLDER, damaged in memory, and written back for each round. */
#define _POSIX_C_SOURCE 200809L

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "archsplit/plugin_loader.h"

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
        if (pwrite(target, text, now, 0) != (ssize_t)now || ftruncate(target, (off_t)now) != 0) {
            return 2;
        }
        archsplit_core *core;
        archsplit_status status = archsplit_core_read(arguments[1], &core);
        if (status == ARCHSPLIT_OK) {
            /* Every text of an accepted core is there, and ends. */
            accepted += strlen(core->package) > 0 && strlen(core->build_id) == 64 &&
                        strlen(core->folders[0]) > 0 && core->target_count > 0;
        } else if (status != ARCHSPLIT_BAD_CORE || *archsplit_last_error() == '\0') {
            return 3;
        }
        archsplit_core_free(core);
    }
    printf("%lu inputs, %lu accepted\n", rounds, accepted);
    return 0;
}
