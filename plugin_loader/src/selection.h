/* The device states of a loader: by procfs alone where that is certain, by NVML when it is needed.
 */
#ifndef ARCHSPLIT_SELECTION_H
#define ARCHSPLIT_SELECTION_H

#include <stdatomic.h>

#include "device_state.h"

/* `certain` is there when procfs was enough to load by, and stays; NVML's answer may come later,
 * and counts from then on. */
struct selection {
    struct device_state *certain;
    _Atomic(struct device_state *) full;
};

/* Detect the devices, by NVML only where procfs leaves a doubt. */
archsplit_status selection_create(archsplit_loader *loader, bool devices);
void selection_destroy(struct selection *selection);

/* The state as it is known now. */
const struct device_state *selection_now(const archsplit_loader *loader);

/* The state by NVML, which is asked now if that was not done before. No lock is held: of threads
 * that call at the same moment each may ask NVML, but all get the same state. */
archsplit_status selection_full(const archsplit_loader *loader, const struct device_state **state);

/* The state that is known now if it is enough to choose for a capability, else the one by NVML. */
archsplit_status selection_for_capability(const archsplit_loader *loader,
                                          struct capability capability,
                                          const struct device_state **state);

/* The state that is known now if it has the device with CUDA's number `index`, else by NVML. */
archsplit_status selection_for_device(const archsplit_loader *loader, uint32_t index,
                                      const struct device_state **state);

#endif
