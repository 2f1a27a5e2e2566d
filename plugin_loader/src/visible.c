/* The devices that CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER leave of those that NVML lists.
 *
 * Sources: CUDA programming guide, "CUDA Environment Variables"; MIG user guide, "CUDA Device
 * Enumeration"; where they are silent, what driver 580 did with about a hundred values on two GPUs
 * (tests/loader/test_loader_gpu.py asks again). */
#include "visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Devices by their number in the machine, in an order of their own. */
struct device_list {
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
static void order_gpus(const struct machine *machine, bool by_pci, struct device_list *gpus) {
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

static bool capabilities_differ(const struct machine *machine, const struct device_list *gpus) {
    if (gpus->count == 0) {
        return false;
    }
    const struct device *first = &machine->devices[gpus->device[0]];
    const struct device *last = &machine->devices[gpus->device[gpus->count - 1]];
    return first->capability.major != last->capability.major ||
           first->capability.minor != last->capability.minor;
}

static bool is_uuid(const char *entry) {
    return strncmp(entry, "GPU-", 4) == 0 || strncmp(entry, "MIG-", 4) == 0;
}

/* True if a UUID is the one that is written there, or starts with it. Case, dashes and which of the
 * two prefixes it is don't count, and neither does what follows a complete UUID. */
static bool uuid_starts(const char *uuid, const char *entry) {
    for (uuid += 4, entry += 4;; uuid++, entry++) {
        uuid += strspn(uuid, "-");
        entry += strspn(entry, "-");
        if (*uuid == '\0' || *entry == '\0' || *entry == ',') {
            return true;
        }
        char digit = *entry >= 'A' && *entry <= 'F' ? (char)(*entry - 'A' + 'a') : *entry;
        if (digit != *uuid) {
            return false;
        }
    }
}

/* The one device that a UUID, or the beginning of one, stands for. Before R470 an instance was
 * MIG-<UUID of the GPU>/<GPU instance>/<compute instance>; such a GPU's first one is taken. */
static int find_uuid(const struct machine *machine, const char *entry) {
    bool of_gpu = strncmp(entry, "MIG-GPU-", 8) == 0;
    int found = NO_DEVICE;
    if (entry[4] == '\0' || entry[4] == ',') {
        return NO_DEVICE; /* though "GPU--" stands for the only one */
    }
    for (uint32_t i = 0; i < machine->device_count; i++) {
        const struct device *device = &machine->devices[i];
        if (strlen(device->uuid) > 4 && (!of_gpu || device->partitioned) &&
            uuid_starts(device->uuid, of_gpu ? entry + 4 : entry)) {
            if (found != NO_DEVICE) {
                return NO_DEVICE;
            }
            found = (int)i;
        }
    }
    return found;
}

/* The low 32 bits of the number count, and what follows it does not. */
static int find_number(const struct device_list *gpus, const char *entry) {
    char *end;
    int number = (int)strtol(entry, &end, 10);
    bool valid = end != entry && number >= 0 && (uint32_t)number < gpus->count;
    return valid ? (int)gpus->device[number] : NO_DEVICE;
}

static bool contains(const struct device_list *list, uint32_t device) {
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->device[i] == device) {
            return true;
        }
    }
    return false;
}

/* Add the device of one entry; false when nothing after it counts. */
static bool select_entry(struct machine *machine, const struct device_list *gpus, bool by_uuid,
                         const char *entry, struct device_list *named) {
    int length = (int)strcspn(entry, ",");
    int found = NO_DEVICE;
    if (by_uuid == is_uuid(entry)) {
        found = by_uuid ? find_uuid(machine, entry) : find_number(gpus, entry);
    }
    if (found == NO_DEVICE) {
        machine_note(machine,
                     "CUDA_VISIBLE_DEVICES: \"%.*s\" names no GPU here, so CUDA ignores it and all "
                     "that follows",
                     length < 80 ? length : 80, entry);
        return false;
    }
    if (contains(named, (uint32_t)found)) {
        machine_note(machine, "CUDA_VISIBLE_DEVICES: \"%.*s\" appears twice, so CUDA shows no GPU",
                     length < 80 ? length : 80, entry);
        named->count = 0;
        return false;
    }
    named->device[named->count++] = (uint32_t)found;
    return true;
}

/* The first entry decides whether all are numbers or all are UUIDs. */
static void select_named(struct machine *machine, const struct device_list *gpus,
                         const char *visible, struct device_list *named) {
    named->count = 0;
    bool by_uuid = is_uuid(visible);
    for (const char *entry = visible; entry != NULL && *visible != '\0';) {
        const char *comma = strchr(entry, ',');
        bool more = select_entry(machine, gpus, by_uuid, entry, named);
        entry = more && comma != NULL ? comma + 1 : NULL;
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
static void apply_mig(struct machine *machine, struct device_list *list) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        uint32_t device = list->device[i];
        if (!to_instance(machine, &device)) {
            continue;
        }
        if (machine->devices[device].instance) {
            if (list->count > 1) {
                machine_note(machine, "a MIG instance is visible: CUDA shows only this one (%s)",
                             machine->devices[device].uuid);
            }
            list->device[0] = device;
            list->count = 1;
            return;
        }
        list->device[count++] = device;
    }
    list->count = count;
}

static void retain(struct machine *machine, const struct device_list *list) {
    struct device all[MAX_DEVICES];
    memcpy(all, machine->devices, sizeof all);
    for (uint32_t i = 0; i < list->count; i++) {
        machine->devices[i] = all[list->device[i]];
    }
    machine->device_count = list->count;
}

static void select_shown(struct machine *machine, const char *visible, const char *order,
                         struct device_list *shown) {
    bool by_pci = order != NULL && strcmp(order, "PCI_BUS_ID") == 0;
    struct device_list gpus;
    order_gpus(machine, by_pci, &gpus);
    *shown = gpus;
    if (order != NULL && !by_pci && strcmp(order, "FASTEST_FIRST") != 0) {
        machine_note(machine, "CUDA doesn't know CUDA_DEVICE_ORDER=%.80s, so it shows no GPU",
                     order);
        shown->count = 0;
        return;
    }
    if (visible != NULL) {
        select_named(machine, &gpus, visible, shown);
    }
    bool by_number = visible == NULL || !is_uuid(visible);
    if (by_number && !by_pci && capabilities_differ(machine, &gpus)) {
        machine_note(machine, "the GPUs differ, and CUDA numbers them by an order of its own; the "
                              "higher capability is taken as the lower number. To be sure, set "
                              "CUDA_DEVICE_ORDER=PCI_BUS_ID or name GPUs by UUID");
    }
    apply_mig(machine, shown);
}

static void list_capabilities(struct machine *machine) {
    for (uint32_t i = 0; i < machine->device_count; i++) {
        struct capability found = machine->devices[i].capability;
        uint32_t at = 0;
        while (at < machine->present_count && (machine->present[at].major != found.major ||
                                               machine->present[at].minor != found.minor)) {
            at++;
        }
        if (at == machine->present_count) {
            machine->present[machine->present_count++] = found;
        }
    }
}

void visible_filter(struct machine *machine, const char *visible, const char *order) {
    struct device_list shown;
    uint32_t all = machine->device_count;
    list_capabilities(machine);
    select_shown(machine, visible, order, &shown);
    retain(machine, &shown);
    if (shown.count == 0) {
        machine_fail(machine, ARCHSPLIT_DRIVER_ALL_HIDDEN,
                     "CUDA hides all %u devices from this process (CUDA_VISIBLE_DEVICES%s%.200s)",
                     all, visible != NULL ? "=" : " is not set", visible != NULL ? visible : "");
    }
}
