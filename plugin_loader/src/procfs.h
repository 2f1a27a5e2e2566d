/* Detection of GPUs by the files of the kernel driver, without any library. */
#ifndef ARCHSPLIT_PROCFS_H
#define ARCHSPLIT_PROCFS_H

#include "device.h"

/* Fill `machine`, which is all zero, as far as loading needs it: whole GPUs of one capability, and
 * the oldest CUDA version of their driver. False, with `machine` in any state, if a fact is
 * uncertain. */
bool procfs_detect_exact(struct machine *machine);

/* Fill `machine`, which is all zero, without NVML. */
void procfs_detect(struct machine *machine);

#endif
