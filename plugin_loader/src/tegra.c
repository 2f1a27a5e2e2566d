#include "tegra.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"

#ifndef DEV_NVHOST
#define DEV_NVHOST "/dev/nvhost-"
#endif
#ifndef DEVICE_TREE
#define DEVICE_TREE "/proc/device-tree"
#endif

/* The chips by their names in the device tree. Source: the Linux kernel's device tree bindings
 * ("nvidia,tegra*"), and the capabilities of the Jetson modules that have them. */
static const struct {
    unsigned long chip;
    struct capability capability;
} chips[] = {
    {124, {3, 2}}, {210, {5, 3}}, {186, {6, 2}}, {194, {7, 2}}, {234, {8, 7}}, {264, {11, 0}},
};

/* The number of the chip in a list of names, each ended by NUL; 0 where there is none. */
static unsigned long find_chip(const struct os_text *compatible) {
    static const char prefix[] = "nvidia,tegra";
    for (size_t at = 0; at < compatible->size; at += strlen(compatible->text + at) + 1) {
        if (strncmp(compatible->text + at, prefix, sizeof prefix - 1) == 0) {
            return strtoul(compatible->text + at + sizeof prefix - 1, NULL, 10);
        }
    }
    return 0;
}

static bool find_capability(unsigned long chip, uint32_t cuda_version,
                            struct capability *capability) {
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++) {
        if (chips[i].chip == chip) {
            *capability = chips[i].capability;
            /* CUDA 13 gave this chip another number. */
            if (chip == 264 && cuda_version != 0 && cuda_version < 13000) {
                *capability = (struct capability){10, 1};
            }
            return true;
        }
    }
    return false;
}

void tegra_detect(struct machine *machine) {
    struct os_text compatible = os_read_text(DEVICE_TREE "/compatible");
    struct os_text model = os_read_text(DEVICE_TREE "/model");
    unsigned long chip = find_chip(&compatible);
    struct capability capability;
    if (!os_exists(DEV_NVHOST "gpu") && !os_exists(DEV_NVHOST "ctrl-gpu")) {
        return;
    }
    machine->cuda_version = libcuda_version();
    machine->device_count = 0;
    if (!find_capability(chip, machine->cuda_version, &capability)) {
        machine_fail(machine, ARCHSPLIT_DRIVER_FAILED,
                     "this is a Jetson (it has " DEV_NVHOST
                     "gpu), but the capability of \"%.80s\" is not known; set "
                     "ARCHSPLIT_CAPABILITY, as in ARCHSPLIT_CAPABILITY=8.7",
                     model.text);
        return;
    }
    struct device *device = machine_add(machine);
    device->capability = capability;
    snprintf(device->name, sizeof device->name, "%.90s", model.text);
    machine->state = ARCHSPLIT_DRIVER_READY;
    machine->reason[0] = '\0';
    machine_note(machine, "the GPU is in a Jetson (tegra%lu), so NVML was not asked", chip);
}
