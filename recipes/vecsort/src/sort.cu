// vecsort_sort, vecsort_sort_pairs and vecsort_argsort: CUB's radix sort between two changes of
// representation.
#include <cub/device/device_radix_sort.cuh>

#include "call.cuh"
#include "key_order.cuh"
#include "sort.cuh"

namespace vecsort {
namespace {

template <class Bits>
__global__ void encode_keys(const Bits *in, Bits *out, std::int64_t n, KeyOrder<Bits> order) {
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        out[i] = order.encode(in[i]);
    }
}

template <class Bits>
__global__ void decode_keys(const Bits *in, Bits *out, std::int64_t n, KeyOrder<Bits> order) {
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        out[i] = order.decode(in[i]);
    }
}

__global__ void count_up(std::uint32_t *out, std::int64_t n) {
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        out[i] = static_cast<std::uint32_t>(i);
    }
}

template <class Value>
__global__ void gather(const Value *in, const std::uint32_t *indices, Value *out, std::int64_t n) {
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        out[i] = in[indices[i]];
    }
}

template <class Bits>
cudaError_t encode(const Bits *in, Bits *out, std::int64_t n, KeyOrder<Bits> order,
                   cudaStream_t stream) {
    encode_keys<<<blocks_for(n), block_threads, 0, stream>>>(in, out, n, order);
    return cudaGetLastError();
}

template <class Bits>
cudaError_t decode(const Bits *in, Bits *out, std::int64_t n, KeyOrder<Bits> order,
                   cudaStream_t stream) {
    decode_keys<<<blocks_for(n), block_threads, 0, stream>>>(in, out, n, order);
    return cudaGetLastError();
}

cudaError_t number(std::uint32_t *out, std::int64_t n, cudaStream_t stream) {
    count_up<<<blocks_for(n), block_threads, 0, stream>>>(out, n);
    return cudaGetLastError();
}

// Copies between arrays on the device, unless they are the same.
cudaError_t copy(const void *in, void *out, std::size_t bytes, cudaStream_t stream) {
    return in == out ? cudaSuccess
                     : cudaMemcpyAsync(out, in, bytes, cudaMemcpyDeviceToDevice, stream);
}

template <class Value>
cudaError_t gather_as(const void *in, const std::uint32_t *indices, void *out, std::int64_t n,
                      cudaStream_t stream) {
    gather<<<blocks_for(n), block_threads, 0, stream>>>(static_cast<const Value *>(in), indices,
                                                        static_cast<Value *>(out), n);
    return cudaGetLastError();
}

cudaError_t gather_values(const void *in, const std::uint32_t *indices, void *out,
                          std::size_t value_size, std::int64_t n, cudaStream_t stream) {
    switch (value_size) {
    case 1:
        return gather_as<std::uint8_t>(in, indices, out, n, stream);
    case 2:
        return gather_as<std::uint16_t>(in, indices, out, n, stream);
    case 8:
        return gather_as<std::uint64_t>(in, indices, out, n, stream);
    default:
        return gather_as<uint4>(in, indices, out, n, stream);
    }
}

template <class Bits>
vecsort_status sort_keys(const void *keys_in, void *keys_out, std::int64_t n, KeyOrder<Bits> order,
                         cudaStream_t stream) {
    Bits *const out = static_cast<Bits *>(keys_out);
    Scratch<Bits> spare(stream);
    VECSORT_TRY(spare.allocate(n));
    VECSORT_TRY(encode(static_cast<const Bits *>(keys_in), out, n, order, stream));
    cub::DoubleBuffer<Bits> codes(out, spare.get());
    const int items = static_cast<int>(n);
    const auto sort = [&](void *space, std::size_t &bytes) {
        return cub::DeviceRadixSort::SortKeys(space, bytes, codes, items, 0, 8 * sizeof(Bits),
                                              stream);
    };
    VECSORT_TRY(with_workspace(stream, "cub::DeviceRadixSort::SortKeys", sort));
    VECSORT_TRY(decode(codes.Current(), out, n, order, stream));
    return VECSORT_OK;
}

// Keys to `keys_out`, with values of 4 bytes that move along.
template <class Bits>
vecsort_status sort_with_values(const void *keys_in, void *keys_out, const void *values_in,
                                void *values_out, std::int64_t n, KeyOrder<Bits> order,
                                cudaStream_t stream) {
    Scratch<Bits> spare_codes(stream);
    Scratch<std::uint32_t> spare_values(stream);
    VECSORT_TRY(spare_codes.allocate(n));
    VECSORT_TRY(spare_values.allocate(n));
    Buffers<Bits> codes{static_cast<Bits *>(keys_out), spare_codes.get()};
    Buffers<std::uint32_t> values{static_cast<std::uint32_t *>(values_out), spare_values.get()};
    VECSORT_TRY(encode(static_cast<const Bits *>(keys_in), codes.current, n, order, stream));
    VECSORT_TRY(copy(values_in, values_out, n * sizeof(std::uint32_t), stream));
    VECSORT_TRY(sort_codes(codes, values, n, stream));
    VECSORT_TRY(copy(values.current, values_out, n * sizeof(std::uint32_t), stream));
    VECSORT_TRY(decode(codes.current, static_cast<Bits *>(keys_out), n, order, stream));
    return VECSORT_OK;
}

// Keys to `keys_out`, and values of any other size by way of their indices.
template <class Bits>
vecsort_status sort_and_gather(const void *keys_in, void *keys_out, const void *values_in,
                               void *values_out, std::size_t value_size, std::int64_t n,
                               KeyOrder<Bits> order, cudaStream_t stream) {
    Scratch<std::uint32_t> indices(stream);
    Scratch<unsigned char> values(stream);
    VECSORT_TRY(indices.allocate(n));
    VECSORT_TRY(number(indices.get(), n, stream));
    VECSORT_TRY(
        sort_with_values(keys_in, keys_out, indices.get(), indices.get(), n, order, stream));
    if (values_in == values_out) {
        VECSORT_TRY(values.allocate(n * value_size));
        VECSORT_TRY(copy(values_in, values.get(), n * value_size, stream));
        values_in = values.get();
    }
    VECSORT_TRY(gather_values(values_in, indices.get(), values_out, value_size, n, stream));
    return VECSORT_OK;
}

template <class Bits>
vecsort_status sort_indices(const void *keys, void *indices_out, std::int64_t n,
                            KeyOrder<Bits> order, cudaStream_t stream) {
    Scratch<Bits> first(stream);
    Scratch<Bits> second(stream);
    Scratch<std::uint32_t> spare_indices(stream);
    VECSORT_TRY(first.allocate(n));
    VECSORT_TRY(second.allocate(n));
    VECSORT_TRY(spare_indices.allocate(n));
    Buffers<Bits> codes{first.get(), second.get()};
    Buffers<std::uint32_t> indices{static_cast<std::uint32_t *>(indices_out), spare_indices.get()};
    VECSORT_TRY(encode(static_cast<const Bits *>(keys), codes.current, n, order, stream));
    VECSORT_TRY(number(indices.current, n, stream));
    VECSORT_TRY(sort_codes(codes, indices, n, stream));
    VECSORT_TRY(copy(indices.current, indices_out, n * sizeof(std::uint32_t), stream));
    return VECSORT_OK;
}

vecsort_status check_sort(vecsort_dtype dtype, vecsort_order order, std::int64_t n) {
    if (item_size(dtype) == 0) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "dtype is %d, which is none", dtype);
    }
    VECSORT_TRY(check_order(order));
    return check_count(n);
}

bool is_value_size(std::size_t size) {
    return size == 1 || size == 2 || size == 4 || size == 8 || size == 16;
}

// The four arrays of a sort of pairs: each in place on its own, all others apart.
vecsort_status check_pairs(const Array &keys_in, const Array &keys_out, const Array &values_in,
                           const Array &values_out) {
    for (const Array *array : {&keys_in, &keys_out, &values_in, &values_out}) {
        VECSORT_TRY(check_memory(*array));
    }
    VECSORT_TRY(check_overlap(keys_in, keys_out, InPlace::yes));
    VECSORT_TRY(check_overlap(values_in, values_out, InPlace::yes));
    VECSORT_TRY(check_overlap(keys_in, values_out, InPlace::no));
    VECSORT_TRY(check_overlap(values_in, keys_out, InPlace::no));
    return check_overlap(keys_out, values_out, InPlace::no);
}

} // namespace

template <class Bits>
vecsort_status sort_codes(Buffers<Bits> &codes, Buffers<std::uint32_t> &indices, std::int64_t n,
                          cudaStream_t stream) {
    cub::DoubleBuffer<Bits> keys(codes.current, codes.spare);
    cub::DoubleBuffer<std::uint32_t> values(indices.current, indices.spare);
    const int items = static_cast<int>(n);
    const auto sort = [&](void *space, std::size_t &bytes) {
        return cub::DeviceRadixSort::SortPairs(space, bytes, keys, values, items, 0,
                                               8 * sizeof(Bits), stream);
    };
    VECSORT_TRY(with_workspace(stream, "cub::DeviceRadixSort::SortPairs", sort));
    codes = {keys.Current(), keys.Alternate()};
    indices = {values.Current(), values.Alternate()};
    return VECSORT_OK;
}

template vecsort_status sort_codes(Buffers<std::uint32_t> &, Buffers<std::uint32_t> &, std::int64_t,
                                   cudaStream_t);
template vecsort_status sort_codes(Buffers<std::uint64_t> &, Buffers<std::uint32_t> &, std::int64_t,
                                   cudaStream_t);

} // namespace vecsort

using namespace vecsort;

extern "C" {

vecsort_status vecsort_sort(vecsort_dtype dtype, vecsort_order order, const void *keys_in,
                            void *keys_out, int64_t n, void *stream) {
    VECSORT_TRY(check_sort(dtype, order, n));
    if (n == 0) {
        return VECSORT_OK;
    }
    const Array in{"keys_in", keys_in, item_size(dtype), n};
    const Array out{"keys_out", keys_out, item_size(dtype), n};
    VECSORT_TRY(check_memory(in));
    VECSORT_TRY(check_memory(out));
    VECSORT_TRY(check_overlap(in, out, InPlace::yes));
    return with_order(dtype, order, [=](auto key_order) {
        return sort_keys(keys_in, keys_out, n, key_order, static_cast<cudaStream_t>(stream));
    });
}

vecsort_status vecsort_sort_pairs(vecsort_dtype dtype, vecsort_order order, const void *keys_in,
                                  void *keys_out, const void *values_in, void *values_out,
                                  size_t value_size, int64_t n, void *stream) {
    VECSORT_TRY(check_sort(dtype, order, n));
    if (!is_value_size(value_size)) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "value_size is %zu, not 1, 2, 4, 8 or 16",
                    value_size);
    }
    if (n == 0) {
        return VECSORT_OK;
    }
    const std::size_t key_size = item_size(dtype);
    VECSORT_TRY(check_pairs({"keys_in", keys_in, key_size, n}, {"keys_out", keys_out, key_size, n},
                            {"values_in", values_in, value_size, n},
                            {"values_out", values_out, value_size, n}));
    return with_order(dtype, order, [=](auto key_order) {
        const auto on = static_cast<cudaStream_t>(stream);
        return value_size == 4
                   ? sort_with_values(keys_in, keys_out, values_in, values_out, n, key_order, on)
                   : sort_and_gather(keys_in, keys_out, values_in, values_out, value_size, n,
                                     key_order, on);
    });
}

vecsort_status vecsort_argsort(vecsort_dtype dtype, vecsort_order order, const void *keys,
                               int32_t *indices_out, int64_t n, void *stream) {
    VECSORT_TRY(check_sort(dtype, order, n));
    if (n == 0) {
        return VECSORT_OK;
    }
    const Array in{"keys", keys, item_size(dtype), n};
    const Array out{"indices_out", indices_out, sizeof(int32_t), n};
    VECSORT_TRY(check_memory(in));
    VECSORT_TRY(check_memory(out));
    VECSORT_TRY(check_overlap(in, out, InPlace::no));
    return with_order(dtype, order, [=](auto key_order) {
        return sort_indices(keys, indices_out, n, key_order, static_cast<cudaStream_t>(stream));
    });
}

} // extern "C"
