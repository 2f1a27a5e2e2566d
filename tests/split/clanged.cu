// For clang without a toolkit's headers: what it needs of the runtime is declared here.
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {
    }
};
typedef struct CUstream_st *cudaStream_t;
typedef int cudaError_t;
typedef __SIZE_TYPE__ size_t;

extern "C" cudaError_t cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
extern "C" cudaError_t __cudaPushCallConfiguration(dim3, dim3, size_t = 0, void * = 0);
extern "C" cudaError_t __cudaPopCallConfiguration(dim3 *, dim3 *, size_t *, void *);
extern "C" cudaError_t cudaMalloc(void **, size_t);
extern "C" cudaError_t cudaMemcpy(void *, const void *, size_t, int);

__device__ int table[4] = {1, 2, 3, 4};

__global__ void twice(int *x) {
    x[0] = 2 * x[0] + table[1];
}

extern "C" int clang_twice(int value) {
    int *there = 0;
    int error = cudaMalloc((void **)&there, sizeof value);
    error = error ? error : cudaMemcpy(there, &value, sizeof value, 1);
    if (error) {
        return -error;
    }
    twice<<<1, 1>>>(there);
    error = cudaMemcpy(&value, there, sizeof value, 2);
    return error ? -error : value;
}
