/* Images with a zstd frame, for drivers before CUDA 12.4, which can't read them. */
#ifndef ARCHSPLIT_ZSTD_H
#define ARCHSPLIT_ZSTD_H

#include <stdbool.h>

#include "../include/archsplit/plugin_loader.h"

/* True if the system's libzstd can be used; a setuid program takes no further library. */
bool zstd_is_there(void);

/* The size of an image as a plain one, which is its own size unless it has a zstd frame; 0 if its
 * header is malformed. */
uint64_t zstd_plain_size(const uint8_t *image, uint64_t size);

/* Write an image as a plain one of zstd_plain_size bytes; false if the frame is damaged. */
bool zstd_unpack(const uint8_t *image, uint64_t size, uint8_t *plain);

#endif
