// vecsort_scan: CUB's single-pass scan.
#include <cub/device/device_scan.cuh>

#include "call.cuh"
#include "key_order.cuh"

namespace vecsort {
namespace {

template <class T>
vecsort_status scan_as(vecsort_scan_kind kind, const void *in, void *out, std::int64_t n,
                       void *stream) {
    const auto on = static_cast<cudaStream_t>(stream);
    const T *const from = static_cast<const T *>(in);
    T *const to = static_cast<T *>(out);
    const int items = static_cast<int>(n);
    return with_workspace(on, "cub::DeviceScan", [=](void *space, std::size_t &bytes) {
        return kind == VECSORT_INCLUSIVE
                   ? cub::DeviceScan::InclusiveSum(space, bytes, from, to, items, on)
                   : cub::DeviceScan::ExclusiveSum(space, bytes, from, to, items, on);
    });
}

vecsort_status check_scan(vecsort_dtype dtype, vecsort_scan_kind kind, std::int64_t n) {
    if (item_size(dtype) == 0) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "dtype is %d, which is none", dtype);
    }
    if (kind != VECSORT_INCLUSIVE && kind != VECSORT_EXCLUSIVE) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT,
                    "kind is %d: neither inclusive (0) nor exclusive (1)", kind);
    }
    return check_count(n);
}

} // namespace
} // namespace vecsort

using namespace vecsort;

extern "C" vecsort_status vecsort_scan(vecsort_dtype dtype, vecsort_scan_kind kind, const void *in,
                                       void *out, int64_t n, void *stream) {
    VECSORT_TRY(check_scan(dtype, kind, n));
    if (n == 0) {
        return VECSORT_OK;
    }
    const Array from{"in", in, item_size(dtype), n};
    const Array to{"out", out, item_size(dtype), n};
    VECSORT_TRY(check_memory(from));
    VECSORT_TRY(check_memory(to));
    VECSORT_TRY(check_overlap(from, to, InPlace::yes));
    switch (dtype) {
    case VECSORT_FLOAT32:
        return scan_as<float>(kind, in, out, n, stream);
    case VECSORT_FLOAT64:
        return scan_as<double>(kind, in, out, n, stream);
    case VECSORT_INT32: // two's complement: the sums of both kinds of integer have the same bits
    case VECSORT_UINT32:
        return scan_as<std::uint32_t>(kind, in, out, n, stream);
    default:
        return scan_as<std::uint64_t>(kind, in, out, n, stream);
    }
}
