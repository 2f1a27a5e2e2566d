/* The device states of a loader: only by procfs if that is certain, otherwise by NVML. */
#ifndef ARCHSPLIT_SELECTION_H
#define ARCHSPLIT_SELECTION_H

#include <stdatomic.h>

#include "device_state.h"

/* `certain` is set if procfs was enough for loading, and stays. `full` is NVML's result: it may
 * come later, and replaces `certain` from then on. */
struct selection {
    struct device_state *certain;
    _Atomic(struct device_state *) full;
};

/* Refuse a malformed ARCHSPLIT_CAPABILITY. */
archsplit_status selection_check_setting(void);

/* Detect the devices; NVML is used only if procfs is not certain. */
archsplit_status selection_create(archsplit_loader *loader, bool devices);
void selection_destroy(struct selection *selection);

/* The current state: `full`, or `certain` before that. */
const struct device_state *selection_now(const archsplit_loader *loader);

/* The state by NVML, which is called now if it wasn't before. No lock is held: threads that call at
 * the same moment may each call NVML, but all get the same state. */
archsplit_status selection_full(const archsplit_loader *loader, const struct device_state **state);

/* The state that is known now if it is enough to choose for a capability, else the one by NVML. */
archsplit_status selection_for_capability(const archsplit_loader *loader,
                                          struct capability capability,
                                          const struct device_state **state);

/* The state that is known now if it has the device with CUDA's number `index`, else by NVML. */
archsplit_status selection_for_device(const archsplit_loader *loader, uint32_t index,
                                      const struct device_state **state);

#endif
