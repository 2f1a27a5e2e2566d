#include "fastadd.h"

static __global__ void add(float *sum, const float *other, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        sum[i] += other[i];
    }
}

int fastadd(float *sum, const float *other, int count) {
    add<<<(count + 255) / 256, 256>>>(sum, other, count);
    return cudaGetLastError();
}
