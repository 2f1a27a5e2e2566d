#include "shared.cuh"
#include "tinyrdc.h"

__device__ int offset = 7;

__device__ int twice(int item) {
    return 2 * item;
}

/* The other source has a variable and a kernel of these names, too. */
static __device__ int calls;

static __global__ void run(int value) {
    calls += 1;
    offset = value + calls - 1;
}

extern "C" int tinyrdc_set(int value) {
    run<<<1, 1>>>(value);
    return cudaDeviceSynchronize();
}
