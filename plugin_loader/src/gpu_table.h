/* The published compute capabilities. */
#ifndef ARCHSPLIT_GPU_TABLE_H
#define ARCHSPLIT_GPU_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One published compute capability. Both lists of names are separated by ", ". */
struct gpu_row {
    uint16_t major;
    uint16_t minor;
    bool embedded;
    const char *display; /* the best-known products, for messages */
    const char *models;  /* product names for detection, without brands */
};
/* In ascending order; NULL past the last one. */
const struct gpu_row *gpu_table_row(size_t index);

#endif
