// Sorts of codes (keys that KeyOrder has mapped to unsigned bits), for the functions that need one
// inside.
#pragma once

#include "call.cuh"

namespace vecsort {

// Two buffers of the same length; the data is in `current`, and may come back in either.
template <class T> struct Buffers {
    T *current;
    T *spare;
};

// Ascending and stable, `indices` along with `codes`. Defined for uint32_t and uint64_t.
template <class Bits>
vecsort_status sort_codes(Buffers<Bits> &codes, Buffers<std::uint32_t> &indices, std::int64_t n,
                          cudaStream_t stream);

} // namespace vecsort
