/* The CUDA driver's library, as far as it tells without cuInit. */
#ifndef ARCHSPLIT_LIBCUDA_H
#define ARCHSPLIT_LIBCUDA_H

#include <stdint.h>

/* The newest CUDA that the driver supports, 13000 for 13.0; 0 without libcuda. */
uint32_t libcuda_version(void);

#endif
