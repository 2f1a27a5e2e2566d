/* What can be known of the GPUs without NVML, which takes longer than all else that a loader does:
 * here only what nothing can make doubtful, for everybody but the odd machine. What is said here is
 * enough to load by; whoever wants to be told of the devices is told by NVML. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"
#include "procfs.h"
#include "gpu_name.h"

/* What any driver of a branch can load at least, whichever CUDA it came with. Source: "CUDA
 * Compatibility", minor version compatibility, table 1: CUDA 13.x from 580 on, 12.x from 525 on,
 * 11.x from 450 on. A compatibility package only adds to that. */
static const struct {
    unsigned long branch;
    uint32_t cuda_version;
} floors[] = {{580, 13000}, {525, 12000}, {450, 11000}};

static uint32_t cuda_floor(const char *driver_version) {
    unsigned long branch = strtoul(driver_version, NULL, 10);
    for (size_t i = 0; i < sizeof floors / sizeof *floors; i++) {
        if (branch >= floors[i].branch) {
            return floors[i].cuda_version;
        }
    }
    return 0;
}

/* Source: MIG user guide, "Supported GPUs": those of 8.0 and later that are made for data centers.
 * Of 8.x that is 8.0 alone. */
static bool may_be_partitioned(struct capability capability) {
    return capability.major > 8 || (capability.major == 8 && capability.minor == 0);
}

/* Whether a GPU has no MIG instances; the driver lists them in a folder, which containers may lack.
 * In MIG mode without an instance it can't be used, so nothing wrong can be loaded for it. */
static bool is_whole(const struct proc_gpu *gpu, struct capability capability) {
    char folder[sizeof PROC_NVIDIA + 64], **names;
    size_t count;
    snprintf(folder, sizeof folder, "%s/capabilities/gpu%s/mig", PROC_NVIDIA, gpu->minor);
    if (os_list(folder, &names, &count) != 0) {
        return !may_be_partitioned(capability);
    }
    os_free_names(names, count);
    return count == 0;
}

static bool all_told(const struct proc_gpu *gpu) {
    bool numbered = *gpu->minor != '\0' && gpu->minor[strspn(gpu->minor, "0123456789")] == '\0';
    return numbered && (strcmp(gpu->excluded, "No") == 0 || strcmp(gpu->excluded, "Yes") == 0);
}

/* What is gathered of the machine while its GPUs are looked at. */
struct look {
    struct machine *machine;
    struct capability common; /* of all GPUs; 0.0 before the first */
    bool some_hidden;         /* there are GPUs that this process is not given */
};

/* GPUs that are not given count too, because the driver's tools may still make their files: with
 * all of one capability it is no matter which of them CUDA shows, and in which order. */
static bool has_common(struct look *look, const struct proc_gpu *gpu) {
    struct capability own;
    if (!capability_for_certain(gpu->model, &own)) {
        return false;
    }
    if (look->common.major == 0) {
        look->common = own;
    }
    return own.major == look->common.major && own.minor == look->common.minor;
}

/* Add one GPU; false when there is a doubt. */
static bool add_gpu(struct look *look, const char *address) {
    struct proc_gpu gpu;
    proc_read(address, &gpu);
    if (!all_told(&gpu) || !has_common(look, &gpu)) {
        return false;
    }
    if (!proc_is_given(&gpu)) {
        look->some_hidden = true;
        return true;
    }
    struct device *device = NULL;
    if (os_usable(gpu.file) && is_whole(&gpu, look->common)) {
        device = proc_add(look->machine, &gpu, address);
    }
    if (device != NULL) {
        device->capability = look->common;
    }
    return device != NULL;
}

static bool add_gpus(struct look *look) {
    char **addresses;
    size_t count;
    if (proc_list(&addresses, &count) != 0) {
        return false;
    }
    bool certain = true;
    for (size_t i = 0; certain && i < count; i++) {
        certain = add_gpu(look, addresses[i]);
    }
    os_free_names(addresses, count);
    return certain;
}

/* Whether it is numbers and commas, and nothing that only CUDA's own reading makes sense of. */
static bool is_plain(const char *visible) {
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

bool machine_quick_look(struct machine *machine) {
    struct look look = {.machine = machine};
    const char *visible = os_environment("CUDA_VISIBLE_DEVICES");
    proc_read_version(machine);
    machine->cuda_version = cuda_floor(machine->driver_version);
    if (machine->cuda_version == 0 || !os_usable(DEV_NVIDIA "ctl") || !add_gpus(&look)) {
        return false;
    }
    if (visible != NULL && (look.some_hidden || !is_plain(visible))) {
        return false;
    }
    machine_show(machine, visible, os_environment("CUDA_DEVICE_ORDER"));
    return machine->state == ARCHSPLIT_DRIVER_READY && machine->note_count == 0;
}
