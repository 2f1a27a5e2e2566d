/* What CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER make of the devices that NVML lists.
 *
 * Sources: CUDA programming guide, "CUDA Environment Variables"; MIG user guide, "CUDA Device
 * Enumeration". */
#include <stdio.h>
#include <string.h>

#include "device.h"

/* Devices by their number in the machine, in an order of their own. */
struct selection {
    uint32_t count;
    uint32_t device[MAX_DEVICES];
};

enum { NO_DEVICE = -1 };

static int compare_pci(const struct device *a, const struct device *b) {
    for (int i = 0; i < 3; i++) {
        if (a->pci[i] != b->pci[i]) {
            return a->pci[i] < b->pci[i] ? -1 : 1;
        }
    }
    return 0;
}

static bool comes_first(const struct device *a, const struct device *b, bool by_pci) {
    if (!by_pci && a->capability.major != b->capability.major) {
        return a->capability.major > b->capability.major;
    }
    if (!by_pci && a->capability.minor != b->capability.minor) {
        return a->capability.minor > b->capability.minor;
    }
    return compare_pci(a, b) < 0;
}

/* The whole GPUs as CUDA numbers them when nothing is hidden. CUDA's default, FASTEST_FIRST, is not
 * documented; the higher capability is taken as faster, and equal ones stay in PCI order. */
static void order_gpus(const struct machine *machine, bool by_pci, struct selection *gpus) {
    gpus->count = 0;
    for (uint32_t i = 0; i < machine->device_count; i++) {
        if (machine->devices[i].instance) {
            continue;
        }
        uint32_t at = gpus->count++;
        for (; at > 0 &&
               comes_first(&machine->devices[i], &machine->devices[gpus->device[at - 1]], by_pci);
             at--) {
            gpus->device[at] = gpus->device[at - 1];
        }
        gpus->device[at] = i;
    }
}

static bool capabilities_differ(const struct machine *machine, const struct selection *gpus) {
    const struct device *first = &machine->devices[gpus->device[0]];
    const struct device *last = &machine->devices[gpus->device[gpus->count - 1]];
    return first->capability.major != last->capability.major ||
           first->capability.minor != last->capability.minor;
}

/* The one device whose UUID starts with `prefix`. */
static int find_uuid(const struct machine *machine, const char *prefix, size_t length) {
    int found = NO_DEVICE;
    for (uint32_t i = 0; i < machine->device_count; i++) {
        if (strncmp(machine->devices[i].uuid, prefix, length) == 0) {
            if (found != NO_DEVICE) {
                return NO_DEVICE;
            }
            found = (int)i;
        }
    }
    return found;
}

/* Without the locale that isdigit asks. */
static bool is_digit(char character) {
    return character >= '0' && character <= '9';
}

/* As strtoul: what follows the digits doesn't matter. */
static int find_index(const struct selection *gpus, const char *entry, size_t length) {
    uint32_t index = 0;
    size_t digits = 0;
    while (digits < length && is_digit(entry[digits]) && index < MAX_DEVICES) {
        index = index * 10 + (uint32_t)(entry[digits++] - '0');
    }
    return digits > 0 && index < gpus->count ? (int)gpus->device[index] : NO_DEVICE;
}

static bool starts_with(const char *text, size_t length, const char *start) {
    return length >= strlen(start) && strncmp(text, start, strlen(start)) == 0;
}

static int find_entry(const struct machine *machine, const struct selection *gpus,
                      const char *entry, size_t length) {
    if (starts_with(entry, length, "MIG-GPU-")) {
        /* Drivers before R470: MIG-<UUID of the GPU>/<GPU instance>/<compute instance>. */
        const char *slash = memchr(entry, '/', length);
        size_t end = slash != NULL ? (size_t)(slash - entry) : length;
        return find_uuid(machine, entry + strlen("MIG-"), end - strlen("MIG-"));
    }
    if (starts_with(entry, length, "GPU-") || starts_with(entry, length, "MIG-")) {
        return find_uuid(machine, entry, length);
    }
    return find_index(gpus, entry, length);
}

static bool contains(const struct selection *selection, uint32_t device) {
    for (uint32_t i = 0; i < selection->count; i++) {
        if (selection->device[i] == device) {
            return true;
        }
    }
    return false;
}

/* Add the device of one entry; false when nothing after it counts. */
static bool select_entry(struct machine *machine, const struct selection *gpus, const char *entry,
                         size_t length, struct selection *named) {
    size_t blank = strspn(entry, " \t");
    int shown = (int)(length < 80 ? length : 80);
    int found = NO_DEVICE;
    if (blank < length) {
        found = find_entry(machine, gpus, entry + blank, length - blank);
    }
    if (found == NO_DEVICE) {
        machine_note(machine,
                     "CUDA_VISIBLE_DEVICES: \"%.*s\" names no GPU here, so CUDA ignores it and all "
                     "that follows",
                     shown, entry);
        return false;
    }
    if (contains(named, (uint32_t)found)) {
        machine_note(machine, "CUDA_VISIBLE_DEVICES: \"%.*s\" is there twice, so CUDA shows no GPU",
                     shown, entry);
        named->count = 0;
        return false;
    }
    named->device[named->count++] = (uint32_t)found;
    return true;
}

static void select_named(struct machine *machine, const struct selection *gpus, const char *visible,
                         struct selection *named) {
    named->count = 0;
    size_t length = strcspn(visible, ",");
    if (*visible == '\0') {
        return;
    }
    while (select_entry(machine, gpus, visible, length, named) && visible[length] != '\0') {
        visible += length + 1;
        length = strcspn(visible, ",");
    }
}

/* A GPU in MIG mode stands for its first instance; that one lies right behind it. */
static bool to_instance(struct machine *machine, uint32_t *device) {
    if (!machine->devices[*device].partitioned) {
        return true;
    }
    if (*device + 1 < machine->device_count && machine->devices[*device + 1].instance) {
        *device += 1;
        return true;
    }
    machine_note(machine, "GPU %u is in MIG mode and has no instance, so CUDA can't use it",
                 machine->devices[*device].nvml_index);
    return false;
}

/* CUDA shows a single instance, and no whole GPU beside an instance. */
static void apply_mig(struct machine *machine, struct selection *selection) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < selection->count; i++) {
        uint32_t device = selection->device[i];
        if (!to_instance(machine, &device)) {
            continue;
        }
        if (machine->devices[device].instance) {
            if (selection->count > 1) {
                machine_note(machine, "a MIG instance is visible: CUDA shows it (%s) alone",
                             machine->devices[device].uuid);
            }
            selection->device[0] = device;
            selection->count = 1;
            return;
        }
        selection->device[count++] = device;
    }
    selection->count = count;
}

static void keep(struct machine *machine, const struct selection *selection) {
    struct device all[MAX_DEVICES];
    memcpy(all, machine->devices, sizeof all);
    for (uint32_t i = 0; i < selection->count; i++) {
        machine->devices[i] = all[selection->device[i]];
    }
    machine->device_count = selection->count;
}

void machine_show(struct machine *machine, const char *visible, const char *order) {
    bool by_pci = order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
    struct selection gpus, shown;
    order_gpus(machine, by_pci, &gpus);
    shown = gpus;
    if (visible != NULL) {
        select_named(machine, &gpus, visible, &shown);
    }
    bool by_number = visible == NULL || is_digit(visible[strspn(visible, " \t")]);
    if (by_number && !by_pci && gpus.count > 1 && capabilities_differ(machine, &gpus)) {
        machine_note(machine, "the GPUs differ, and CUDA numbers them by an order of its own; the "
                              "higher capability is taken as the lower number. To be sure, set "
                              "CUDA_DEVICE_ORDER=PCI_BUS_ID or name GPUs by UUID");
    }
    apply_mig(machine, &shown);
    keep(machine, &shown);
    if (shown.count == 0) {
        machine->state = ARCHSPLIT_DRIVER_ALL_HIDDEN;
        snprintf(machine->reason, sizeof machine->reason,
                 "CUDA shows none of the %u GPUs to this process (CUDA_VISIBLE_DEVICES%s%.200s)",
                 gpus.count, visible != NULL ? "=" : " is not set", visible != NULL ? visible : "");
    }
}
