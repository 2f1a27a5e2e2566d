/* What the sources have of each other: each symbol is defined in one of them. */
#pragma once

extern __device__ int offset;
__device__ int twice(int item);
