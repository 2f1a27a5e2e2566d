// Thrust and CUB: so much text for the host compiler that the host pass is half of a compile.
#pragma once
#include <cstdint>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/sort.h>

// Both arrays are the host's, and are sorted in the device's memory.
template <class Key, class Value> void sort_pairs(Key *keys, Value *values, std::int64_t n) {
    thrust::device_vector<Key> sorted(keys, keys + n);
    thrust::device_vector<Value> following(values, values + n);
    thrust::sort_by_key(sorted.begin(), sorted.end(), following.begin());
    thrust::copy(sorted.begin(), sorted.end(), keys);
    thrust::copy(following.begin(), following.end(), values);
}

#define SORT(Key, Value) template void sort_pairs(Key *, Value *, std::int64_t);
