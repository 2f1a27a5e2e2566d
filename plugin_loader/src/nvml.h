/* Detection of GPUs by NVML, the management library of the driver. */
#ifndef ARCHSPLIT_NVML_H
#define ARCHSPLIT_NVML_H

#include "device.h"

/* Fill `machine`, which is all zero; false, with the error text set, without NVML. */
bool nvml_detect(struct machine *machine);

#endif
