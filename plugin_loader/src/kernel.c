/* Without NVML, as in containers that were given CUDA's libraries alone, the kernel driver still
 * tells of each GPU what it is called. That is enough where the table of choose.c has the name, and
 * said to be less than an answer where it has not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "detail.h"
#include "device.h"
#include "os.h"

#ifndef PROC_NVIDIA
#define PROC_NVIDIA "/proc/driver/nvidia"
#endif
#ifndef DEV_NVIDIA
#define DEV_NVIDIA "/dev/nvidia"
#endif

/* What a file has, up to a length that no file here reaches; "" when it can't be read. */
struct content {
    char text[2048];
};

static struct content read_text(const char *path) {
    struct content content = {{0}};
    struct os_file file;
    if (os_open(path, &file) == 0) {
        os_read_some(&file, content.text, sizeof content.text - 1);
        os_close(&file);
    }
    return content;
}

/* Copy what stands behind a label, from its first letter to the end of its line. */
static void take_field(const struct content *content, const char *label, char *to, size_t size) {
    const char *found = strstr(content->text, label);
    size_t length = 0;
    if (found != NULL) {
        found += strlen(label);
        found += strspn(found, " \t");
        length = strcspn(found, "\n");
        length = length < size ? length : size - 1;
        memcpy(to, found, length);
    }
    to[length] = '\0';
}

/* A container may be shown the GPUs of the whole machine here, but has files for its own alone. */
static bool is_given(const struct content *content) {
    char excluded[8], minor[8], path[sizeof DEV_NVIDIA + sizeof minor];
    take_field(content, "GPU Excluded:", excluded, sizeof excluded);
    take_field(content, "Device Minor:", minor, sizeof minor);
    snprintf(path, sizeof path, "%s%s", DEV_NVIDIA, minor);
    return strcmp(excluded, "Yes") != 0 && *minor != '\0' && os_exists(path);
}

/* Add one GPU; false when nobody knows what it can do. */
static bool add_gpu(struct machine *machine, const char *address) {
    char path[512];
    snprintf(path, sizeof path, "%s/gpus/%s/information", PROC_NVIDIA, address);
    struct content content = read_text(path);
    struct device *gpu = is_given(&content) ? machine_add(machine) : NULL;
    if (gpu == NULL) {
        return true;
    }
    gpu->nvml_index = machine->device_count - 1;
    take_field(&content, "Model:", gpu->name, sizeof gpu->name);
    take_field(&content, "GPU UUID:", gpu->uuid, sizeof gpu->uuid);
    snprintf(gpu->pci_bus_id, sizeof gpu->pci_bus_id, "%.31s", address);
    sscanf(address, "%x:%x:%x", &gpu->pci[0], &gpu->pci[1], &gpu->pci[2]);
    if (capability_of_product(gpu->name, &gpu->capability)) {
        return true;
    }
    machine_stop(machine, ARCHSPLIT_DRIVER_FAILED,
                 "libnvidia-ml.so.1 is not here, and the capability of the GPU \"%s\" is not known "
                 "by its name; give this container the driver's utility libraries",
                 gpu->name);
    return false;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..." */
static void take_version(struct machine *machine) {
    struct content content = read_text(PROC_NVIDIA "/version");
    for (char *word = content.text; (word = strpbrk(word, "0123456789")) != NULL;) {
        size_t length = strspn(word, "0123456789.");
        if (memchr(word, '.', length) != NULL && length < sizeof machine->driver_version) {
            memcpy(machine->driver_version, word, length);
            return;
        }
        word += length;
    }
}

static void add_gpus(struct machine *machine, char **addresses, size_t count) {
    bool known = true;
    for (size_t i = 0; known && i < count; i++) {
        known = add_gpu(machine, addresses[i]);
    }
    if (!known) {
        machine->device_count = 0;
    } else if (machine->device_count == 0) {
        machine_stop(machine, ARCHSPLIT_DRIVER_NO_GPU,
                     "the driver is there, but none of its %zu GPUs was given to this container",
                     count);
    } else {
        machine_note(machine, "libnvidia-ml.so.1 is not here: the GPUs are those that " PROC_NVIDIA
                              " lists, and what they can do is told by their names. To be sure, "
                              "give this container the driver's utility libraries");
    }
}

void machine_ask_kernel(struct machine *machine) {
    char **addresses;
    size_t count;
    machine_stop(machine, ARCHSPLIT_DRIVER_MISSING, "there is no NVIDIA driver: %s", detail_text());
    if (os_list(PROC_NVIDIA "/gpus", &addresses, &count) != 0) {
        return;
    }
    if (count > 0) {
        machine->state = ARCHSPLIT_DRIVER_READY;
        machine->reason[0] = '\0';
        take_version(machine);
        add_gpus(machine, addresses, count);
    }
    os_free_names(addresses, count);
}
