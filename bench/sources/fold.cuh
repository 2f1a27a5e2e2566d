// CUB without Thrust: a reduction and a scan.
#pragma once
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_scan.cuh>

template <class T> cudaError_t folded(void *room, size_t &size, const T *in, T *out, int n) {
    return cub::DeviceReduce::Sum(room, size, in, out, n);
}

template <class T> cudaError_t scanned(void *room, size_t &size, const T *in, T *out, int n) {
    return cub::DeviceScan::InclusiveSum(room, size, in, out, n);
}

#define FOLD(T) template cudaError_t folded(void *, size_t &, const T *, T *, int);
#define SCAN(T) template cudaError_t scanned(void *, size_t &, const T *, T *, int);
