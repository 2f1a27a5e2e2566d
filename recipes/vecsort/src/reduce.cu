// vecsort_reduce: CUB's reduction, compiled once a type; which one it is, is known at run time.
#include <cub/device/device_reduce.cuh>

#include <cuda/std/limits>

#include "call.cuh"
#include "key_order.cuh"

namespace vecsort {
namespace {

// Which reduction it is, is the same for all threads, so asking costs a predicate, and a reduction
// waits for memory.

// An item that isn't itself is a NaN; it wins.
template <class T> struct FloatingReduction {
    vecsort_reduction kind;

    __device__ T operator()(T a, T b) const {
        if (kind == VECSORT_SUM) {
            return a + b;
        }
        const bool first = kind == VECSORT_MIN ? a < b : b < a;
        return first || a != a ? a : b;
    }

    // What changes no result.
    T neutral() const {
        constexpr T infinity = cuda::std::numeric_limits<T>::infinity();
        return kind == VECSORT_SUM ? T(0) : kind == VECSORT_MIN ? infinity : -infinity;
    }
};

// Serves both kinds of integer: sums have the same bits, and comparisons need the sign bit turned
// around.
template <class Bits> struct IntegerReduction {
    vecsort_reduction kind;
    Bits sign; // the sign bit, or 0 for unsigned integers

    __device__ Bits operator()(Bits a, Bits b) const {
        if (kind == VECSORT_SUM) {
            return a + b;
        }
        const bool ordered = (a ^ sign) < (b ^ sign);
        return ordered == (kind == VECSORT_MIN) ? a : b;
    }

    // What changes no result.
    Bits neutral() const {
        return kind == VECSORT_SUM   ? Bits(0)
               : kind == VECSORT_MIN ? static_cast<Bits>(~sign)
                                     : sign;
    }
};

template <class T, class Reduction>
vecsort_status reduce_with(Reduction reduction, const void *in, void *out, std::int64_t n,
                           void *stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    const T *const from = static_cast<const T *>(in);
    T *const to = static_cast<T *>(out);
    const int items = static_cast<int>(n);
    return with_workspace(on, "cub::DeviceReduce::Reduce", [=](void *space, std::size_t &bytes) {
        return cub::DeviceReduce::Reduce(space, bytes, from, to, items, reduction,
                                         reduction.neutral(), on);
    });
}

vecsort_status check_reduce(vecsort_dtype dtype, vecsort_reduction kind, std::int64_t n) {
    if (item_size(dtype) == 0) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "dtype is %d, which is none", dtype);
    }
    if (kind != VECSORT_SUM && kind != VECSORT_MIN && kind != VECSORT_MAX) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT,
                    "reduction is %d: not sum (0), min (1) or max (2)", kind);
    }
    if (n == 0 && kind != VECSORT_SUM) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "no items have no least and no greatest");
    }
    return check_count(n);
}

} // namespace
} // namespace vecsort

using namespace vecsort;

extern "C" vecsort_status vecsort_reduce(vecsort_dtype dtype, vecsort_reduction reduction,
                                         const void *in, void *out, int64_t n, void *stream) {
    VECSORT_TRY(check_reduce(dtype, reduction, n));
    const Array from{"in", in, item_size(dtype), n};
    const Array to{"out", out, item_size(dtype), 1};
    VECSORT_TRY(check_memory(to));
    if (n > 0) {
        VECSORT_TRY(check_memory(from));
        VECSORT_TRY(check_overlap(from, to, InPlace::no));
    }
    switch (dtype) {
    case VECSORT_FLOAT32:
        return reduce_with<float>(FloatingReduction<float>{reduction}, in, out, n, stream);
    case VECSORT_FLOAT64:
        return reduce_with<double>(FloatingReduction<double>{reduction}, in, out, n, stream);
    case VECSORT_INT32:
        return reduce_with<std::uint32_t>(IntegerReduction<std::uint32_t>{reduction, 1u << 31}, in,
                                          out, n, stream);
    case VECSORT_UINT32:
        return reduce_with<std::uint32_t>(IntegerReduction<std::uint32_t>{reduction, 0}, in, out, n,
                                          stream);
    case VECSORT_INT64:
        return reduce_with<std::uint64_t>(
            IntegerReduction<std::uint64_t>{reduction, std::uint64_t(1) << 63}, in, out, n, stream);
    default:
        return reduce_with<std::uint64_t>(IntegerReduction<std::uint64_t>{reduction, 0}, in, out, n,
                                          stream);
    }
}
