/* Detection of devices: quick, by procfs, if that leaves no question open; else full, by NVML. */
#ifndef ARCHSPLIT_DETECTION_H
#define ARCHSPLIT_DETECTION_H

#include <stdatomic.h>

#include "device_state.h"

/* `quick` is set if procfs was enough for loading, and stays. `full` may come later, and replaces
 * `quick` from then on. */
struct detection {
    struct device_state *quick;
    _Atomic(struct device_state *) full;
};

/* Refuse a malformed ARCHSPLIT_CAPABILITY. */
archsplit_status detection_check_setting(void);

/* Detect the devices; NVML is used only if procfs is not enough. */
archsplit_status detection_create(archsplit_loader *loader, bool devices);
void detection_destroy(struct detection *detection);

/* The current state: `full`, or `quick` before that. */
const struct device_state *detection_now(const archsplit_loader *loader);

/* The state by NVML, which is called now if it wasn't before. No lock is held: threads that call at
 * the same moment may each call NVML, but all get the same state. */
archsplit_status detection_full(const archsplit_loader *loader, const struct device_state **state);

/* The state that is known now if it is enough to choose for a capability, else the one by NVML. */
archsplit_status detection_for_capability(const archsplit_loader *loader,
                                          struct capability capability,
                                          const struct device_state **state);

/* The state that is known now if it has the device with CUDA's number `index`, else by NVML. */
archsplit_status detection_for_device(const archsplit_loader *loader, uint32_t index,
                                      const struct device_state **state);

#endif
