#include "selection.h"

#include <stdio.h>
#include <stdlib.h>

#include "coverage.h"
#include "error.h"
#include "nvml.h"
#include "os.h"
#include "procfs.h"
#include "tegra.h"
#include "trace.h"
#include "visible.h"

static bool parse_capability(const char *text, struct capability *capability) {
    char *dot, *end;
    unsigned long major = strtoul(text, &dot, 10);
    unsigned long minor = *dot == '.' ? strtoul(dot + 1, &end, 10) : 10;
    *capability = (struct capability){(uint32_t)major, (uint32_t)minor};
    return *text >= '1' && *text <= '9' && major < 1000 && minor < 10 && end == dot + 2 &&
           *end == '\0';
}

archsplit_status selection_check_setting(void) {
    const char *setting = os_environment("ARCHSPLIT_CAPABILITY");
    struct capability capability;
    if (setting == NULL || *setting == '\0' || parse_capability(setting, &capability)) {
        return ARCHSPLIT_OK;
    }
    error_set("ARCHSPLIT_CAPABILITY=%.80s is not a compute capability; write it as in 8.7, or "
              "remove the variable",
              setting);
    return ARCHSPLIT_BAD_SETTING;
}

/* ARCHSPLIT_CAPABILITY stands for one GPU if none can be found. It takes no part in any check:
 * neither in what the driver is known to load, nor in which users' plugins are accepted. */
static void detect_setting(struct machine *machine) {
    const char *setting = os_environment("ARCHSPLIT_CAPABILITY");
    struct capability capability;
    if (setting == NULL || !parse_capability(setting, &capability)) {
        return;
    }
    if (machine->state == ARCHSPLIT_DRIVER_READY) {
        machine_note(machine, "ARCHSPLIT_CAPABILITY=%.80s is not used: the GPUs are known",
                     setting);
    } else {
        machine->device_count = 0;
        struct device *device = machine_add(machine);
        device->capability = capability;
        snprintf(device->name, sizeof device->name, "GPU of ARCHSPLIT_CAPABILITY=%.10s", setting);
        machine_note(machine, "ARCHSPLIT_CAPABILITY=%.10s stands for a GPU, because %.200s",
                     setting, machine->reason);
        machine->state = ARCHSPLIT_DRIVER_READY;
        machine->reason[0] = '\0';
        if (machine->cuda_version == 0) {
            machine->cuda_version = libcuda_version();
        }
    }
}

static void trace_devices(const struct machine *machine) {
    trace("driver: %s, CUDA %u, %u devices visible, %u capabilities present %s",
          machine->state == ARCHSPLIT_DRIVER_READY ? "ready" : "not ready", machine->cuda_version,
          machine->device_count, machine->present_count, machine->reason);
    for (uint32_t i = 0; i < machine->device_count; i++) {
        trace("device %u: %s, capability %u.%u", i, machine->devices[i].name,
              machine->devices[i].capability.major, machine->devices[i].capability.minor);
    }
}

/* Fill `machine` by the first reader that finds a GPU: NVML, the files of the kernel driver, those
 * of a Jetson, the setting. */
static void detect(struct machine *machine) {
    if (!nvml_detect(machine)) {
        procfs_detect(machine);
    }
    if (machine->state != ARCHSPLIT_DRIVER_READY) {
        tegra_detect(machine);
    }
    detect_setting(machine);
    for (uint32_t i = 0; i < machine->device_count; i++) {
        text_escape(machine->devices[i].name, sizeof machine->devices[i].name);
    }
    if (machine->state == ARCHSPLIT_DRIVER_READY) {
        visible_filter(machine, os_environment("CUDA_VISIBLE_DEVICES"),
                       os_environment("CUDA_DEVICE_ORDER"));
    }
    trace_devices(machine);
}

/* The state by NVML, or without a device; NULL without memory. */
static struct device_state *ask(const archsplit_loader *loader, bool devices) {
    struct device_state *state = state_create(loader);
    if (state != NULL && devices) {
        detect(&state->machine);
    } else if (state != NULL) {
        machine_stop(&state->machine, ARCHSPLIT_DRIVER_NOT_ASKED, "devices were not asked for");
    }
    if (state != NULL && state_judge(state) != ARCHSPLIT_OK) {
        state_destroy(state);
        return NULL;
    }
    return state;
}

/* True if asking NVML couldn't change what is loaded. procfs named GPUs of one capability, and the
 * oldest CUDA version that the driver can have: machine code for that version would also be chosen
 * for a newer driver. */
static bool is_enough(const struct device_state *state) {
    for (uint32_t i = 0; i < state->loader->count; i++) {
        if (state->verdicts[i].verdict == ARCHSPLIT_DRIVER_TOO_OLD) {
            return false;
        }
    }
    return coverage_is_native(state, state->machine.devices[0].capability);
}

/* The state only by procfs; NULL if that is not enough, or memory has run out. */
static struct device_state *look(const archsplit_loader *loader) {
    struct device_state *state = loader->count > 0 ? state_create(loader) : NULL;
    bool certain = state != NULL && procfs_detect_certain(&state->machine) &&
                   state_judge(state) == ARCHSPLIT_OK && is_enough(state);
    if (certain) {
        trace("/proc/driver/nvidia is enough to load by");
        trace_devices(&state->machine);
    } else {
        state_destroy(state);
    }
    return certain ? state : NULL;
}

archsplit_status selection_create(archsplit_loader *loader, bool devices) {
    struct selection *selection = loader->selection = calloc(1, sizeof *selection);
    if (selection == NULL) {
        return error_no_memory();
    }
    selection->certain = devices ? look(loader) : NULL;
    struct device_state *full = NULL;
    if (selection->certain == NULL) {
        full = ask(loader, devices);
    }
    atomic_init(&selection->full, full);
    return selection->certain != NULL || full != NULL ? ARCHSPLIT_OK : error_no_memory();
}

void selection_destroy(struct selection *selection) {
    if (selection != NULL) {
        state_destroy(selection->certain);
        state_destroy(atomic_load(&selection->full));
        free(selection);
    }
}

const struct device_state *selection_now(const archsplit_loader *loader) {
    const struct device_state *full = atomic_load(&loader->selection->full);
    return full != NULL ? full : loader->selection->certain;
}

/* Say in NVML's answer that loading did not wait for it. */
static void note_certain_look(struct machine *machine, const struct machine *certain) {
    struct capability taken = certain->devices[0].capability;
    bool agreed = machine->state == ARCHSPLIT_DRIVER_READY;
    for (uint32_t i = 0; i < machine->device_count; i++) {
        struct capability reported = machine->devices[i].capability;
        agreed = agreed && reported.major == taken.major && reported.minor == taken.minor;
    }
    machine_note(machine,
                 "loading does not ask NVML here: by /proc/driver/nvidia, all GPUs are of "
                 "capability %u.%u%s",
                 taken.major, taken.minor, agreed ? "" : ", and NVML says otherwise");
}

archsplit_status selection_full(const archsplit_loader *loader, const struct device_state **state) {
    struct selection *selection = loader->selection;
    struct device_state *full = atomic_load(&selection->full);
    if (full == NULL) {
        struct device_state *own = ask(loader, true);
        if (own == NULL) {
            return error_no_memory();
        }
        note_certain_look(&own->machine, &selection->certain->machine);
        if (atomic_compare_exchange_strong(&selection->full, &full, own)) {
            full = own;
        } else {
            state_destroy(own);
        }
    }
    *state = full;
    return ARCHSPLIT_OK;
}

archsplit_status selection_for_capability(const archsplit_loader *loader,
                                          struct capability capability,
                                          const struct device_state **state) {
    *state = selection_now(loader);
    bool enough = *state != loader->selection->certain || coverage_is_native(*state, capability);
    return enough ? ARCHSPLIT_OK : selection_full(loader, state);
}

archsplit_status selection_for_device(const archsplit_loader *loader, uint32_t index,
                                      const struct device_state **state) {
    *state = selection_now(loader);
    bool is_there = index < (*state)->machine.device_count;
    return is_there ? ARCHSPLIT_OK : selection_full(loader, state);
}
