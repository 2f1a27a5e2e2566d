/* A library of whole-program code: y = 3 x + 1. */
__global__ void whole_kernel(int *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] = 3 * values[i] + 1;
    }
}

extern "C" int toyfat_whole(int *values, int count) {
    int *device = nullptr;
    cudaError_t error = cudaMalloc(&device, count * sizeof(int));
    if (error == cudaSuccess) {
        error = cudaMemcpy(device, values, count * sizeof(int), cudaMemcpyHostToDevice);
    }
    if (error == cudaSuccess) {
        whole_kernel<<<(count + 255) / 256, 256>>>(device, count);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) {
        error = cudaMemcpy(values, device, count * sizeof(int), cudaMemcpyDeviceToHost);
    }
    cudaFree(device);
    return error;
}
