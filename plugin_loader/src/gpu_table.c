#include "gpu_table.h"

/* The published capabilities, ascending, with what people call the GPUs. An embedded part's SASS is
 * promised to no other part, and no other part's SASS to it. The source of each line is in
 * splitter/arch/table.py. */
static const struct gpu_row rows[] = {
    {3, 0, false, "Tesla K10, GeForce GTX 680"},
    {3, 2, true, "Tegra K1"},
    {3, 5, false, "Tesla K20, K40"},
    {3, 7, false, "Tesla K80"},
    {5, 0, false, "Tesla M10, GeForce GTX 750"},
    {5, 2, false, "Tesla M60, GeForce GTX 980"},
    {5, 3, true, "Jetson TX1, Nano"},
    {6, 0, false, "Tesla P100"},
    {6, 1, false, "Tesla P4, P40, GeForce GTX 1080"},
    {6, 2, true, "Jetson TX2"},
    {7, 0, false, "V100"},
    {7, 2, true, "Jetson Xavier"},
    {7, 5, false, "T4, GeForce RTX 2080"},
    {8, 0, false, "A100, A30"},
    {8, 6, false, "A10, A40, GeForce RTX 3090"},
    {8, 7, true, "Jetson Orin"},
    {8, 8, true, ""},
    {8, 9, false, "L4, L40S, GeForce RTX 4090"},
    {9, 0, false, "H100, H200"},
    {10, 0, false, "B200"},
    {10, 1, true, "Thor before CUDA 13"},
    {10, 3, false, "B300"},
    {10, 7, false, "Rubin"},
    {11, 0, true, "Jetson Thor"},
    {12, 0, false, "RTX PRO 6000, GeForce RTX 5090"},
    {12, 1, false, "GB10 (DGX Spark)"},
};

enum { ROW_COUNT = sizeof rows / sizeof *rows };

const struct gpu_row *gpu_table_row(size_t index) {
    return index < ROW_COUNT ? &rows[index] : NULL;
}
