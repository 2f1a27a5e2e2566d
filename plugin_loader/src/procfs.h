/* Detection of GPUs by the files of the kernel driver, without any library. */
#ifndef ARCHSPLIT_PROCFS_H
#define ARCHSPLIT_PROCFS_H

#include "device.h"

/* Fill `machine`, which is all zero, as far as loading needs it: whole GPUs of one capability, and
 * the least that their driver can load. False, with anything in it, where there is any doubt. */
bool procfs_detect_certain(struct machine *machine);

/* Fill `machine`, which is all zero, where there is no NVML. */
void procfs_detect(struct machine *machine);

#endif
