/* What the kernel driver tells without any library: the files under /proc/driver/nvidia. */
#ifndef ARCHSPLIT_PROC_H
#define ARCHSPLIT_PROC_H

#include "device.h"

#ifndef PROC_NVIDIA
#define PROC_NVIDIA "/proc/driver/nvidia"
#endif
#ifndef DEV_NVIDIA
#define DEV_NVIDIA "/dev/nvidia"
#endif

/* One GPU; each text is "" where it isn't told. */
struct proc_gpu {
    char model[96];
    char uuid[96];
    char excluded[8]; /* by the administrator: "Yes" or "No" */
    char minor[8];
    char file[sizeof DEV_NVIDIA + 8]; /* through which it is used, of the device's minor number */
};

/* The GPUs' PCI addresses, as os_list gives them. */
int proc_list(char ***addresses, size_t *count);

void proc_read(const char *address, struct proc_gpu *gpu);

/* A container may be shown the GPUs of the whole machine, but has files for its own alone. */
bool proc_is_given(const struct proc_gpu *gpu);

/* One more device of the machine, without its capability; NULL when there are too many. */
struct device *proc_add(struct machine *machine, const struct proc_gpu *gpu, const char *address);

/* Set the machine's driver version, if it is told. */
void proc_read_version(struct machine *machine);

#endif
