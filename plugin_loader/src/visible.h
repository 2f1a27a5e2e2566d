/* The rules of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. */
#ifndef ARCHSPLIT_VISIBLE_H
#define ARCHSPLIT_VISIBLE_H

#include "device.h"

/* Reduce the devices, which are all of the machine in NVML's order, to those that CUDA shows, in
 * CUDA's order. `visible` is CUDA_VISIBLE_DEVICES and `order` CUDA_DEVICE_ORDER, NULL where not
 * set. */
void visible_filter(struct machine *machine, const char *visible, const char *order);

#endif
