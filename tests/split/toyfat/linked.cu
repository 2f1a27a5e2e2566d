/* A library of relocatable code: the kernel calls a function of another translation unit. */
extern __device__ int twice(int value);
__global__ void linked_kernel(int *values, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) {
        values[i] = twice(values[i]) + 5;
    }
}

extern "C" int toyfat_linked(int *values, int count) {
    int *device = nullptr;
    cudaError_t error = cudaMalloc(&device, count * sizeof(int));
    if (error == cudaSuccess) {
        error = cudaMemcpy(device, values, count * sizeof(int), cudaMemcpyHostToDevice);
    }
    if (error == cudaSuccess) {
        linked_kernel<<<(count + 255) / 256, 256>>>(device, count);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) {
        error = cudaMemcpy(values, device, count * sizeof(int), cudaMemcpyDeviceToHost);
    }
    cudaFree(device);
    return error;
}
