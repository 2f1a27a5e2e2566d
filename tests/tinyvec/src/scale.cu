#include "tinyvec.h"

namespace {

__global__ void scale(float *vector, float factor, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        vector[at] *= factor;
    }
}

} // namespace

extern "C" int tinyvec_scale(float *vector, float factor, int count) {
    scale<<<(count + 255) / 256, 256>>>(vector, factor, count);
    return cudaGetLastError();
}
