/* The GPUs of a machine, and the state of its driver. */
#ifndef ARCHSPLIT_DEVICE_H
#define ARCHSPLIT_DEVICE_H

#include <stdbool.h>

#include "../include/archsplit/plugin_loader.h"
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
    /* Capabilities of all GPUs, each once, also of those that CUDA doesn't show to this process: a
     * child, or this process before its first CUDA call, may change what is visible. */
    uint32_t present_count;
    struct capability present[MAX_DEVICES];
    uint32_t note_count;
    char notes[MAX_NOTES][MAX_NOTE];
};

/* One more device, all zero; NULL, with a note, when there are too many. */
struct device *machine_add(struct machine *machine);
__attribute__((format(printf, 2, 3))) void machine_note(struct machine *machine, const char *format,
                                                        ...);
/* A state that is not READY, and why. */
__attribute__((format(printf, 3, 4))) void
machine_fail(struct machine *machine, archsplit_driver_state state, const char *format, ...);

/* The newest CUDA that the driver supports, 13000 for 13.0; 0 without libcuda. */
uint32_t libcuda_version(void);

#endif
