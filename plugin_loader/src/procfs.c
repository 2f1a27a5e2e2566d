#include "procfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compat.h"
#include "error.h"
#include "os.h"
#include "visible.h"

#ifndef PROC_NVIDIA
#define PROC_NVIDIA "/proc/driver/nvidia"
#endif
#define GPUS PROC_NVIDIA "/gpus"
#ifndef DEV_NVIDIA
#define DEV_NVIDIA "/dev/nvidia"
#endif

/* One GPU; a text is "" if the files don't have it. */
struct gpu_files {
    char model[96];
    char uuid[96];
    char excluded[8]; /* by the administrator: "Yes" or "No" */
    char minor[8];
    char file[sizeof DEV_NVIDIA + 8]; /* through which it is used, of the device's minor number */
};

/* Copy what stands behind a label, from its first letter to the end of its line. */
static void take_field(const struct os_text *content, const char *label, char *to, size_t size) {
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

static void read_gpu(const char *address, struct gpu_files *gpu) {
    char path[512];
    snprintf(path, sizeof path, GPUS "/%s/information", address);
    struct os_text content = os_read_text(path);
    take_field(&content, "Model:", gpu->model, sizeof gpu->model);
    take_field(&content, "GPU UUID:", gpu->uuid, sizeof gpu->uuid);
    take_field(&content, "GPU Excluded:", gpu->excluded, sizeof gpu->excluded);
    take_field(&content, "Device Minor:", gpu->minor, sizeof gpu->minor);
    snprintf(gpu->file, sizeof gpu->file, "%s%s", DEV_NVIDIA, gpu->minor);
}

static bool is_accessible(const struct gpu_files *gpu) {
    return strcmp(gpu->excluded, "Yes") != 0 && *gpu->minor != '\0' && os_exists(gpu->file);
}

static struct device *add_device(struct machine *machine, const struct gpu_files *gpu,
                                 const char *address) {
    struct device *device = machine_add(machine);
    if (device != NULL) {
        device->nvml_index = machine->device_count - 1;
        memcpy(device->name, gpu->model, sizeof device->name);
        memcpy(device->uuid, gpu->uuid, sizeof device->uuid);
        snprintf(device->pci_bus_id, sizeof device->pci_bus_id, "%.31s", address);
        sscanf(address, "%x:%x:%x", &device->pci[0], &device->pci[1], &device->pci[2]);
    }
    return device;
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  ..." */
static void read_version(struct machine *machine) {
    struct os_text content = os_read_text(PROC_NVIDIA "/version");
    for (char *word = content.text; (word = strpbrk(word, "0123456789")) != NULL;) {
        size_t length = strspn(word, "0123456789.");
        if (memchr(word, '.', length) != NULL && length < sizeof machine->driver_version) {
            memcpy(machine->driver_version, word, length);
            return;
        }
        word += length;
    }
}

/* First reader: it succeeds only if the files leave no question open. Then the loader doesn't call
 * NVML, which takes longer than all its other work. */

/* The CUDA version that any driver of a branch can load at least, whichever CUDA it came with.
 * Source: "CUDA Compatibility", minor version compatibility, table 1: CUDA 13.x from 580 on, 12.x
 * from 525 on, 11.x from 450 on. A compatibility package only adds to that. */
static const struct {
    unsigned long branch;
    uint32_t cuda_version;
} oldest_versions[] = {{580, 13000}, {525, 12000}, {450, 11000}};

static uint32_t oldest_cuda(const char *driver_version) {
    unsigned long branch = strtoul(driver_version, NULL, 10);
    for (size_t i = 0; i < sizeof oldest_versions / sizeof *oldest_versions; i++) {
        if (branch >= oldest_versions[i].branch) {
            return oldest_versions[i].cuda_version;
        }
    }
    return 0;
}

/* Source: MIG user guide, "Supported GPUs": GPUs of 8.0 and later for data centers.
 * Of 8.x that is only 8.0. */
static bool may_be_partitioned(struct capability capability) {
    return capability.major > 8 || (capability.major == 8 && capability.minor == 0);
}

/* True if a GPU has no MIG instances; the driver lists them in a folder, which containers may lack.
 * In MIG mode without an instance it can't be used, so nothing wrong can be loaded for it. */
static bool has_no_instance(const struct gpu_files *gpu, struct capability capability) {
    char folder[sizeof PROC_NVIDIA + 64], **names;
    size_t count;
    snprintf(folder, sizeof folder, "%s/capabilities/gpu%s/mig", PROC_NVIDIA, gpu->minor);
    if (os_list(folder, &names, &count) != 0) {
        return !may_be_partitioned(capability);
    }
    os_free_names(names, count);
    return count == 0;
}

static bool is_complete(const struct gpu_files *gpu) {
    bool numbered = *gpu->minor != '\0' && gpu->minor[strspn(gpu->minor, "0123456789")] == '\0';
    return numbered && (strcmp(gpu->excluded, "No") == 0 || strcmp(gpu->excluded, "Yes") == 0);
}

/* The machine so far, while its GPUs are read. */
struct scan {
    struct machine *machine;
    struct capability capability; /* of all GPUs; 0.0 before the first */
    bool some_hidden;             /* there are GPUs that are not accessible */
};

/* GPUs that are not accessible count too, because the driver's tools may still make their files:
 * with all of one capability it doesn't matter which of them CUDA shows, and in which order. */
static bool has_equal_capability(struct scan *scan, const struct gpu_files *gpu) {
    struct capability found;
    if (!capability_by_exact_name(gpu->model, &found)) {
        return false;
    }
    if (scan->capability.major == 0) {
        scan->capability = found;
    }
    return found.major == scan->capability.major && found.minor == scan->capability.minor;
}

/* Add one GPU; false if a fact about it is uncertain. */
static bool add_exact_gpu(struct scan *scan, const char *address) {
    struct gpu_files gpu;
    read_gpu(address, &gpu);
    if (!is_complete(&gpu) || !has_equal_capability(scan, &gpu)) {
        return false;
    }
    if (!is_accessible(&gpu)) {
        scan->some_hidden = true;
        return true;
    }
    struct device *device = NULL;
    if (os_is_usable(gpu.file) && has_no_instance(&gpu, scan->capability)) {
        device = add_device(scan->machine, &gpu, address);
    }
    if (device != NULL) {
        device->capability = scan->capability;
    }
    return device != NULL;
}

static bool add_exact_gpus(struct scan *scan) {
    char **addresses;
    size_t count;
    if (os_list(GPUS, &addresses, &count) != 0) {
        return false;
    }
    bool exact = true;
    for (size_t i = 0; exact && i < count; i++) {
        exact = add_exact_gpu(scan, addresses[i]);
    }
    os_free_names(addresses, count);
    return exact;
}

/* True if it is numbers and commas, and nothing that only CUDA's own reading makes sense of. */
static bool is_number_list(const char *visible) {
    for (const char *entry = visible;; entry++) {
        size_t length = strspn(entry, "0123456789");
        entry += length;
        if (length == 0 || length > 4 || (*entry != ',' && *entry != '\0')) {
            return false;
        }
        if (*entry == '\0') {
            return true;
        }
    }
}

bool procfs_detect_exact(struct machine *machine) {
    struct scan scan = {.machine = machine};
    const char *visible = os_environment("CUDA_VISIBLE_DEVICES");
    read_version(machine);
    machine->cuda_version = oldest_cuda(machine->driver_version);
    if (machine->cuda_version == 0 || !os_is_usable(DEV_NVIDIA "ctl") || !add_exact_gpus(&scan)) {
        return false;
    }
    if (visible != NULL && (scan.some_hidden || !is_number_list(visible))) {
        return false;
    }
    visible_filter(machine, visible, os_environment("CUDA_DEVICE_ORDER"));
    return machine->state == ARCHSPLIT_DRIVER_READY && machine->note_count == 0;
}

/* Second reader: without NVML, as in containers that were given only CUDA's libraries,
 * the name of each GPU is enough where the GPU table has it. */

/* Add one GPU; false if its capability is unknown. */
static bool add_gpu(struct machine *machine, const char *address) {
    struct gpu_files files;
    read_gpu(address, &files);
    struct device *gpu = is_accessible(&files) ? add_device(machine, &files, address) : NULL;
    if (gpu == NULL || capability_by_name(gpu->name, &gpu->capability)) {
        return true;
    }
    machine_fail(machine, ARCHSPLIT_DRIVER_FAILED,
                 "libnvidia-ml.so.1 is not here, and the capability of the GPU \"%s\" is not known "
                 "by its name; give this container the driver's utility libraries",
                 gpu->name);
    return false;
}

static void add_gpus(struct machine *machine, char **addresses, size_t count) {
    bool known = true;
    for (size_t i = 0; known && i < count; i++) {
        known = add_gpu(machine, addresses[i]);
    }
    if (!known) {
        machine->device_count = 0;
    } else if (machine->device_count == 0) {
        machine_fail(machine, ARCHSPLIT_DRIVER_NO_GPU,
                     "the driver is there, but this container was given no GPU of its %zu", count);
    } else {
        machine_note(machine, "libnvidia-ml.so.1 is not here: the GPUs are those that " PROC_NVIDIA
                              " lists, and capabilities are looked up by name. To be sure, "
                              "give this container the driver's utility libraries");
    }
}

void procfs_detect(struct machine *machine) {
    char **addresses;
    size_t count;
    machine_fail(machine, ARCHSPLIT_DRIVER_MISSING, "no NVIDIA driver: %s", error_text());
    if (os_list(GPUS, &addresses, &count) != 0) {
        return;
    }
    if (count > 0) {
        machine->state = ARCHSPLIT_DRIVER_READY;
        machine->reason[0] = '\0';
        read_version(machine);
        add_gpus(machine, addresses, count);
    }
    os_free_names(addresses, count);
}
