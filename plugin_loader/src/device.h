/* Which GPUs this process will see through CUDA, found without initialising CUDA. */
#ifndef ARCHSPLIT_DEVICE_H
#define ARCHSPLIT_DEVICE_H

#include <stdbool.h>

#include "compat.h"

/* NVML's own limits are 96 bytes for names and UUIDs, 32 for PCI addresses, 80 for versions. */
enum { MAX_DEVICES = 128, MAX_NOTES = 16, MAX_NOTE = 320 };

struct device {
    struct capability capability;
    uint32_t nvml_index;
    bool instance;    /* a MIG instance and not a whole GPU */
    bool partitioned; /* a GPU in MIG mode: programs get its instances, never the GPU */
    uint32_t pci[3];  /* domain, bus, device: what PCI order means */
    char name[96];
    char uuid[96];
    char pci_bus_id[32];
};

struct machine {
    archsplit_driver_state state;
    char reason[MAX_NOTE];
    char driver_version[80];
    uint32_t cuda_version;
    uint32_t device_count;
    struct device devices[MAX_DEVICES];
    uint32_t note_count;
    char notes[MAX_NOTES][MAX_NOTE];
};

/* Fill `machine`, which is all zero, whatever happens: what goes wrong is a state and a reason. */
void machine_detect(struct machine *machine);

/* Fill it without NVML, as far as loading needs it: whole GPUs of one capability, and the least
 * that their driver can load. False, with anything in it, where there is the slightest doubt. */
bool machine_quick_look(struct machine *machine);

/* Fill it from NVML; false, with the detail set, where there is no such library. */
bool machine_ask_nvml(struct machine *machine);
/* Fill it from what the kernel driver tells without any library. */
void machine_ask_kernel(struct machine *machine);

/* Reduce the devices, which are all there are and in NVML's order, to those that CUDA shows, in
 * CUDA's order. `visible` is CUDA_VISIBLE_DEVICES and `order` CUDA_DEVICE_ORDER, NULL where not
 * set. */
void machine_show(struct machine *machine, const char *visible, const char *order);

/* One more device, all zero; NULL, with a note, when there are too many. */
struct device *machine_add(struct machine *machine);
__attribute__((format(printf, 2, 3))) void machine_note(struct machine *machine, const char *format,
                                                        ...);
/* A state that is not READY, and why. */
__attribute__((format(printf, 3, 4))) void
machine_stop(struct machine *machine, archsplit_driver_state state, const char *format, ...);

#endif
