/* Feeds odd texts to the readers of settings and of the kernel driver's files.
 *
 * The first byte of an input selects the reader: CUDA_VISIBLE_DEVICES on a machine with GPUs and
 * MIG instances, /proc/driver/nvidia, or the device tree of a Jetson. With -fsanitize=fuzzer it is
 * a libFuzzer target. Without, it is a program: fuzz_settings ROUNDS SEED */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The readers take their files from here, and not from this machine. */
#define os_read_text fake_read_text
#define os_list fake_list
#define os_free_names fake_free_names
#define os_exists fake_exists
#define os_usable fake_usable
#define os_environment fake_environment
#include "../../plugin_loader/src/procfs.c"
#include "../../plugin_loader/src/tegra.c"

#include "../../plugin_loader/src/error.h"

static const char *input;
static size_t input_length;

struct os_text fake_read_text(const char *path) {
    struct os_text found = {{0}, 0};
    size_t room = sizeof found.text - 1;
    (void)path;
    if (input_length % 5 != 4) {
        found.size = input_length < room ? input_length : room;
        memcpy(found.text, input, found.size);
    }
    return found;
}

int fake_list(const char *folder, char ***names, size_t *count) {
    static char *both[] = {"0000:01:00.0", "0000:02:00.0"};
    (void)folder;
    *names = both;
    *count = input_length % 3;
    return 0;
}

void fake_free_names(char **names, size_t count) {
    (void)names;
    (void)count;
}

bool fake_exists(const char *path) {
    (void)path;
    return true;
}

bool fake_usable(const char *path) {
    (void)path;
    return true;
}

const char *fake_environment(const char *name) {
    return strcmp(name, "CUDA_VISIBLE_DEVICES") == 0 && input_length % 2 == 0 ? input : NULL;
}

static void filter(struct machine *machine, const char *text) {
    for (uint32_t i = 0; i < 6; i++) {
        struct device *device = machine_add(machine);
        device->capability = (struct capability){i < 3 ? 9 : 8, i % 2};
        device->instance = i > 3;
        device->partitioned = i == 3;
        device->pci[1] = 6 - i;
        snprintf(device->uuid, sizeof device->uuid, "%s-%u0000000-1111-2222", i > 3 ? "MIG" : "GPU",
                 i);
    }
    visible_filter(machine, text, input_length % 2 == 0 ? "PCI_BUS_ID" : NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length) {
    static struct machine machine;
    char small[24];
    char *text = calloc(1, length + 1);
    if (text == NULL || length == 0) {
        free(text);
        return 0;
    }
    memcpy(text, bytes + 1, length - 1);
    input = text;
    input_length = length - 1;
    memset(&machine, 0, sizeof machine);
    switch (bytes[0] % 4) {
    case 0:
        filter(&machine, text);
        break;
    case 1:
        procfs_detect(&machine);
        break;
    case 2:
        procfs_detect_exact(&machine);
        break;
    default:
        tegra_detect(&machine);
    }
    if (machine.device_count > MAX_DEVICES || machine.note_count > MAX_NOTES ||
        memchr(machine.reason, '\0', sizeof machine.reason) == NULL) {
        abort();
    }
    snprintf(small, sizeof small, "%s", text);
    text_escape(small, sizeof small);
    free(text);
    return 0;
}

#ifndef LIBFUZZER
int main(int count, char **arguments) {
    static const char *const pieces[] = {"0",
                                         "1",
                                         "5",
                                         "-1",
                                         ",",
                                         " ",
                                         "GPU-",
                                         "MIG-",
                                         "GPU-10000",
                                         "\n",
                                         "Model:",
                                         "\t",
                                         "NVIDIA H100",
                                         "UUID:",
                                         "Device Minor:",
                                         "\x1b",
                                         "\xff",
                                         "nvidia,gb10b",
                                         "tegra234",
                                         "NVRM version:"};
    uint8_t bytes[256];
    if (count != 3) {
        return 2;
    }
    unsigned long rounds = strtoul(arguments[1], NULL, 10);
    srand((unsigned)strtoul(arguments[2], NULL, 10));
    for (unsigned long round = 0; round < rounds; round++) {
        size_t length = 1;
        bytes[0] = (uint8_t)rand();
        for (int i = rand() % 12; i > 0; i--) {
            const char *piece = pieces[(size_t)rand() % (sizeof pieces / sizeof *pieces)];
            memcpy(bytes + length, piece, strlen(piece));
            length += strlen(piece);
        }
        LLVMFuzzerTestOneInput(bytes, length);
    }
    printf("%lu inputs\n", rounds);
    return 0;
}
#endif
