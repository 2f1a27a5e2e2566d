// Plain templates: one kernel for every pair of an operation and a type, each worth a few
// milliseconds of every tool.
#pragma once

#define OPERATION(Name, VALUE)                                                                     \
    struct Name {                                                                                  \
        static __device__ double of(double a, double b) {                                          \
            return VALUE;                                                                          \
        }                                                                                          \
    };

OPERATION(Sine, sin(a) + b)
OPERATION(Power, pow(a, b))
OPERATION(Remainder, fmod(a, b))
OPERATION(Exponential, exp(a) * b)
OPERATION(Logarithm, log(a) / b)
OPERATION(Tangent, tan(a) + b)
OPERATION(Gamma, lgamma(a) + b)
OPERATION(Error, erf(a) + b)
OPERATION(Length, hypot(a, b))
OPERATION(Angle, atan2(a, b))
OPERATION(Root, cbrt(a) + b)
OPERATION(Bessel, j0(a) + b)
OPERATION(Fused, fma(a, b, fma(b, a, fma(a, a, b))))

template <class Operation, class T, int ITEMS>
__global__ void map(T *out, const T *a, const T *b, int n) {
    const int first = (blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
        if (first + i < n) {
            out[first + i] = static_cast<T>(Operation::of(a[first + i], b[first + i]));
        }
    }
}

#define MAP(Operation, T, ITEMS)                                                                   \
    template __global__ void map<Operation, T, ITEMS>(T *, const T *, const T *, int);
#define MAPS_OF_TYPE(Operation, T)                                                                 \
    MAP(Operation, T, 1)                                                                           \
    MAP(Operation, T, 2)                                                                           \
    MAP(Operation, T, 4)                                                                           \
    MAP(Operation, T, 8)                                                                           \
    MAP(Operation, T, 16)
#define MAPS(Operation)                                                                            \
    MAPS_OF_TYPE(Operation, signed char)                                                           \
    MAPS_OF_TYPE(Operation, short)                                                                 \
    MAPS_OF_TYPE(Operation, int)                                                                   \
    MAPS_OF_TYPE(Operation, long)                                                                  \
    MAPS_OF_TYPE(Operation, float)                                                                 \
    MAPS_OF_TYPE(Operation, double)
