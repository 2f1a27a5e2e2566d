/* Detection of the GPU in a Jetson, which may have no NVML and no /proc/driver/nvidia. */
#ifndef ARCHSPLIT_TEGRA_H
#define ARCHSPLIT_TEGRA_H

#include "device.h"

/* Fill `machine`, in which no GPU was found, if this is a Jetson. */
void tegra_detect(struct machine *machine);

#endif
