// A library with one kernel that says which image runs: of which virtual target, and with its
// suffix.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SUFFIX 1
#elif defined(__CUDA_ARCH_SPECIFIC__)
#define SUFFIX 1
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#define SUFFIX 2
#else
#define SUFFIX 0
#endif

__global__ void say(int *out) {
#ifdef __CUDA_ARCH__
    *out = __CUDA_ARCH__ * 10 + SUFFIX;
#endif
}

// Returns what the kernel said, or minus the error of the CUDA runtime.
extern "C" int which_image(void) {
    int *out = nullptr, value = 0;
    cudaError_t error = cudaMalloc(&out, sizeof *out);
    if (error == cudaSuccess) {
        say<<<1, 1>>>(out);
        error = cudaGetLastError();
    }
    if (error == cudaSuccess) {
        error = cudaMemcpy(&value, out, sizeof value, cudaMemcpyDeviceToHost);
    }
    return error == cudaSuccess ? value : -(int)error;
}
