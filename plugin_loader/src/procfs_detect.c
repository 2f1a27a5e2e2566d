/* Without NVML, as in containers that were given CUDA's libraries alone, the kernel driver still
 * tells of each GPU what it is called. That is enough where the table of compat.c has the name, and
 * said to be less than an answer where it has not. */
#include <stddef.h>

#include "error.h"
#include "os.h"
#include "procfs.h"
#include "gpu_name.h"

/* Add one GPU; false when nobody knows what it can do. */
static bool add_gpu(struct machine *machine, const char *address) {
    struct proc_gpu told;
    proc_read(address, &told);
    struct device *gpu = proc_is_given(&told) ? proc_add(machine, &told, address) : NULL;
    if (gpu == NULL || capability_of_product(gpu->name, &gpu->capability)) {
        return true;
    }
    machine_stop(machine, ARCHSPLIT_DRIVER_FAILED,
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
    if (proc_list(&addresses, &count) != 0) {
        return;
    }
    if (count > 0) {
        machine->state = ARCHSPLIT_DRIVER_READY;
        machine->reason[0] = '\0';
        proc_read_version(machine);
        add_gpus(machine, addresses, count);
    }
    os_free_names(addresses, count);
}
