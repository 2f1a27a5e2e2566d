// The order of keys, as a bijection onto unsigned integers.
//
// CUB's radix sort is compiled for each key type and each direction. Mapping keys to unsigned bits
// first costs two streaming passes over them. In return two compilations serve twelve cases, which
// makes small plugins, and the order is ours to promise: NaNs of either sign come last, as in
// NumPy.
#pragma once

#include <cstdint>

#include "vecsort.h"

namespace vecsort {

template <class Bits> struct KeyOrder {
    static constexpr Bits sign = Bits(1) << (8 * sizeof(Bits) - 1);

    Bits negative;   // XORed into keys with the sign bit: turns sign and magnitude around
    Bits flip;       // XORed into all keys: puts negative ones first
    Bits shift;      // subtracted: takes the NaNs that are below -infinity around to the top
    Bits complement; // XORed last: all ones to descend

    __host__ __device__ Bits encode(Bits key) const {
        const Bits magnitude_ordered = key & sign ? key ^ negative : key;
        return ((magnitude_ordered ^ flip) - shift) ^ complement;
    }

    __host__ __device__ Bits decode(Bits code) const {
        const Bits key = ((code ^ complement) + shift) ^ flip;
        return key & sign ? key ^ negative : key;
    }
};

// `mantissa` is as many bits of ones as the format has fraction bits, which is also how many NaNs
// have the sign bit.
template <class Bits> constexpr KeyOrder<Bits> floating(Bits mantissa) {
    return {static_cast<Bits>(~KeyOrder<Bits>::sign), KeyOrder<Bits>::sign, mantissa, 0};
}

template <class Bits> constexpr KeyOrder<Bits> signed_integer() {
    return {0, KeyOrder<Bits>::sign, 0, 0};
}

template <class Bits> constexpr KeyOrder<Bits> unsigned_integer() {
    return {0, 0, 0, 0};
}

template <class Bits>
constexpr KeyOrder<Bits> directed(KeyOrder<Bits> order, vecsort_order direction) {
    order.complement = direction == VECSORT_DESCENDING ? static_cast<Bits>(~Bits(0)) : Bits(0);
    return order;
}

// The size of one item, or 0 if `dtype` is none of ours.
constexpr std::size_t item_size(vecsort_dtype dtype) {
    switch (dtype) {
    case VECSORT_FLOAT32:
    case VECSORT_INT32:
    case VECSORT_UINT32:
        return 4;
    case VECSORT_FLOAT64:
    case VECSORT_INT64:
    case VECSORT_UINT64:
        return 8;
    default:
        return 0;
    }
}

// Calls `use` with the order of `dtype`: KeyOrder<uint32_t> or KeyOrder<uint64_t>.
template <class Use>
vecsort_status with_order(vecsort_dtype dtype, vecsort_order direction, Use use) {
    switch (dtype) {
    case VECSORT_FLOAT32:
        return use(directed(floating<std::uint32_t>(0x7FFFFFu), direction));
    case VECSORT_FLOAT64:
        return use(directed(floating<std::uint64_t>(0xFFFFFFFFFFFFFu), direction));
    case VECSORT_INT32:
        return use(directed(signed_integer<std::uint32_t>(), direction));
    case VECSORT_INT64:
        return use(directed(signed_integer<std::uint64_t>(), direction));
    case VECSORT_UINT32:
        return use(directed(unsigned_integer<std::uint32_t>(), direction));
    default:
        return use(directed(unsigned_integer<std::uint64_t>(), direction));
    }
}

} // namespace vecsort
