#include "detection.h"

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

archsplit_status detection_check_setting(void) {
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

/* ARCHSPLIT_CAPABILITY stands for one GPU if none can be found. It changes no check: neither what
 * the driver can load, nor whose plugins are accepted. */
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

/* Fill `machine` from the first source that has a GPU: NVML, /proc/driver/nvidia, a Jetson's device
 * tree, ARCHSPLIT_CAPABILITY. */
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

/* The state after full detection, or without devices if none are wanted; NULL without memory. */
static struct device_state *detect_fully(const archsplit_loader *loader, bool devices) {
    struct device_state *state = state_create(loader);
    if (state != NULL && devices) {
        detect(&state->machine);
    } else if (state != NULL) {
        machine_fail(&state->machine, ARCHSPLIT_DRIVER_NOT_ASKED, "devices were not asked for");
    }
    if (state != NULL && state_judge(state) != ARCHSPLIT_OK) {
        state_destroy(state);
        return NULL;
    }
    return state;
}

/* True if a query to NVML couldn't change what is loaded: all GPUs have one capability, and machine
 * code serves all that it needs. procfs gives the oldest CUDA version that the driver can have;
 * code that is chosen for that version would also be chosen for a newer one. */
static bool needs_no_nvml(const struct device_state *state) {
    for (uint32_t i = 0; i < state->loader->count; i++) {
        if (state->verdicts[i].verdict == ARCHSPLIT_DRIVER_TOO_OLD) {
            return false;
        }
    }
    return coverage_is_native(state, state->machine.devices[0].capability);
}

/* The state after quick detection; NULL if that is not enough, or memory has run out. */
static struct device_state *detect_quickly(const archsplit_loader *loader) {
    struct device_state *state = loader->count > 0 ? state_create(loader) : NULL;
    bool is_enough = state != NULL && procfs_detect_exact(&state->machine) &&
                     state_judge(state) == ARCHSPLIT_OK && needs_no_nvml(state);
    if (is_enough) {
        trace("/proc/driver/nvidia is enough: NVML is not asked");
        trace_devices(&state->machine);
    } else {
        state_destroy(state);
    }
    return is_enough ? state : NULL;
}

archsplit_status detection_create(archsplit_loader *loader, bool devices) {
    struct detection *detection = loader->detection = calloc(1, sizeof *detection);
    if (detection == NULL) {
        return error_no_memory();
    }
    detection->quick = devices ? detect_quickly(loader) : NULL;
    struct device_state *full = NULL;
    if (detection->quick == NULL) {
        full = detect_fully(loader, devices);
    }
    atomic_init(&detection->full, full);
    return detection->quick != NULL || full != NULL ? ARCHSPLIT_OK : error_no_memory();
}

void detection_destroy(struct detection *detection) {
    if (detection != NULL) {
        state_destroy(detection->quick);
        state_destroy(atomic_load(&detection->full));
        free(detection);
    }
}

const struct device_state *detection_now(const archsplit_loader *loader) {
    const struct device_state *full = atomic_load(&loader->detection->full);
    return full != NULL ? full : loader->detection->quick;
}

/* Note that loading did not wait for full detection. */
static void note_quick_detection(struct machine *machine, const struct machine *quick) {
    struct capability found = quick->devices[0].capability;
    bool agreed = machine->state == ARCHSPLIT_DRIVER_READY;
    for (uint32_t i = 0; i < machine->device_count; i++) {
        struct capability reported = machine->devices[i].capability;
        agreed = agreed && reported.major == found.major && reported.minor == found.minor;
    }
    machine_note(machine,
                 "loading does not ask NVML here: by /proc/driver/nvidia, all GPUs are of "
                 "capability %u.%u%s",
                 found.major, found.minor, agreed ? "" : ", and NVML says otherwise");
}

archsplit_status detection_full(const archsplit_loader *loader, const struct device_state **state) {
    struct detection *detection = loader->detection;
    struct device_state *full = atomic_load(&detection->full);
    if (full == NULL) {
        struct device_state *made = detect_fully(loader, true);
        if (made == NULL) {
            return error_no_memory();
        }
        note_quick_detection(&made->machine, &detection->quick->machine);
        if (atomic_compare_exchange_strong(&detection->full, &full, made)) {
            full = made;
        } else {
            state_destroy(made);
        }
    }
    *state = full;
    return ARCHSPLIT_OK;
}

archsplit_status detection_for_capability(const archsplit_loader *loader,
                                          struct capability capability,
                                          const struct device_state **state) {
    *state = detection_now(loader);
    bool enough = *state != loader->detection->quick || coverage_is_native(*state, capability);
    return enough ? ARCHSPLIT_OK : detection_full(loader, state);
}

archsplit_status detection_for_device(const archsplit_loader *loader, uint32_t index,
                                      const struct device_state **state) {
    *state = detection_now(loader);
    bool is_there = index < (*state)->machine.device_count;
    return is_there ? ARCHSPLIT_OK : detection_full(loader, state);
}
