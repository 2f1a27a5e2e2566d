// vecsort_topk: radix select. CUB of CUDA 13.0 has no top-k, so its kernels are written here.
//
// Keys become codes, so that the k wanted items are those with the least codes. Digit by digit from
// the top, the codes that begin as the k-th one does are counted by their next digit; that settles
// the next digit of the k-th code. Then two passes collect what is below it, and as many of its
// equals as are still needed, in the order of their indices (so the result is the same on every
// run). A stable sort of those k ends it. Nothing waits for the host.
#include "call.cuh"
#include "key_order.cuh"
#include "sort.cuh"

namespace vecsort {
namespace {

constexpr int digit_bits = 8;
constexpr int digits = 1 << digit_bits;
constexpr int warps = block_threads / 32;
constexpr int most_slices = 1024;
static_assert(block_threads == digits, "one thread for each digit");

// What is known of the k-th code.
template <class Bits> struct Selection {
    Bits code;            // its settled digits, zeros below
    std::uint32_t wanted; // how many of the codes that begin like this belong to the k
    std::uint32_t counts[digits];
};

// How many codes below the k-th (and equal to it) a slice of the input has; after `place_slices`,
// earlier slices.
struct Slice {
    std::uint32_t below;
    std::uint32_t equal;
};

// The inclusive sum of `value` over the threads of the block up to the calling one. `sums` has room
// for each thread.
__device__ std::uint32_t running_sum(std::uint32_t value, std::uint32_t *sums) {
    const unsigned me = threadIdx.x;
    sums[me] = value;
    __syncthreads();
    for (unsigned distance = 1; distance < blockDim.x; distance *= 2) {
        const std::uint32_t before = me >= distance ? sums[me - distance] : 0;
        __syncthreads();
        sums[me] += before;
        __syncthreads();
    }
    return sums[me];
}

template <class Bits> __global__ void begin_selection(Selection<Bits> *selection, std::uint32_t k) {
    selection->counts[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        selection->code = 0;
        selection->wanted = k;
    }
}

template <class Bits>
__global__ void count_digits(const Bits *keys, std::int64_t n, KeyOrder<Bits> order, int low_bit,
                             Bits settled, Selection<Bits> *selection) {
    __shared__ std::uint32_t counts[digits];
    counts[threadIdx.x] = 0;
    __syncthreads();
    const Bits prefix = selection->code;
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        const Bits code = order.encode(keys[i]);
        if ((code & settled) == prefix) {
            atomicAdd(&counts[(code >> low_bit) & (digits - 1)], 1u);
        }
    }
    __syncthreads();
    if (counts[threadIdx.x] > 0) {
        atomicAdd(&selection->counts[threadIdx.x], counts[threadIdx.x]);
    }
}

// One block: settles the digit in which the wanted-th of the counted codes lies.
template <class Bits> __global__ void settle_digit(int low_bit, Selection<Bits> *selection) {
    __shared__ std::uint32_t sums[digits];
    const std::uint32_t wanted = selection->wanted;
    const std::uint32_t mine = selection->counts[threadIdx.x];
    const std::uint32_t through =
        running_sum(mine, sums); // its barriers also part the reads above from the writes below
    const std::uint32_t before = through - mine;
    selection->counts[threadIdx.x] = 0;
    if (before < wanted && wanted <= through) {
        selection->code |= Bits(threadIdx.x) << low_bit;
        selection->wanted = wanted - before;
    }
}

// Slices are runs of whole tiles of one item a thread, so that a block sees its items in order.
__host__ __device__ inline std::int64_t slice_items(std::int64_t n) {
    const std::int64_t tiles = (n + block_threads - 1) / block_threads;
    return (tiles + most_slices - 1) / most_slices * block_threads;
}

template <class Bits>
__global__ void count_slices(const Bits *keys, std::int64_t n, KeyOrder<Bits> order,
                             const Selection<Bits> *selection, Slice *slices) {
    const Bits kth = selection->code;
    const std::int64_t begin = blockIdx.x * slice_items(n);
    const std::int64_t end = begin + slice_items(n);
    std::uint32_t below = 0;
    std::uint32_t equal = 0;
    for (std::int64_t tile = begin; tile < end; tile += blockDim.x) {
        const std::int64_t i = tile + threadIdx.x;
        const Bits code = i < n ? order.encode(keys[i]) : Bits(0);
        below += __syncthreads_count(i < n && code < kth);
        equal += __syncthreads_count(i < n && code == kth);
    }
    if (threadIdx.x == 0) {
        slices[blockIdx.x] = {below, equal};
    }
}

// One block of most_slices threads: turns counts into positions.
__global__ void place_slices(Slice *slices, int count) {
    __shared__ std::uint32_t sums[most_slices];
    const int me = static_cast<int>(threadIdx.x);
    const Slice mine = me < count ? slices[me] : Slice{0, 0};
    const std::uint32_t below = running_sum(mine.below, sums);
    const std::uint32_t equal = running_sum(mine.equal, sums);
    if (me < count) {
        slices[me] = {below - mine.below, equal - mine.equal};
    }
}

// How many threads of the block before the calling one say yes, and how many do in all.
struct Rank {
    std::uint32_t before;
    std::uint32_t all;
};

__device__ Rank rank(bool yes, std::uint32_t (&warp_counts)[warps]) {
    const unsigned lane = threadIdx.x % 32;
    const unsigned warp = threadIdx.x / 32;
    const unsigned votes = __ballot_sync(0xFFFFFFFFu, yes);
    __syncthreads(); // the counts of the call before have been read
    if (lane == 0) {
        warp_counts[warp] = __popc(votes);
    }
    __syncthreads();
    Rank result{static_cast<std::uint32_t>(__popc(votes & ((1u << lane) - 1))), 0};
    for (unsigned other = 0; other < warps; ++other) {
        result.before += other < warp ? warp_counts[other] : 0;
        result.all += warp_counts[other];
    }
    return result;
}

template <class Bits>
__global__ void collect(const Bits *keys, std::int64_t n, std::uint32_t k, KeyOrder<Bits> order,
                        const Selection<Bits> *selection, const Slice *slices, Bits *codes,
                        std::uint32_t *indices) {
    __shared__ std::uint32_t warp_counts[warps];
    const Bits kth = selection->code;
    const std::uint32_t wanted_equals = selection->wanted;
    const std::int64_t begin = blockIdx.x * slice_items(n);
    const std::int64_t end = begin + slice_items(n);
    Slice found = slices[blockIdx.x];
    for (std::int64_t tile = begin; tile < end; tile += blockDim.x) {
        const std::int64_t i = tile + threadIdx.x;
        const Bits code = i < n ? order.encode(keys[i]) : Bits(0);
        const bool is_below = i < n && code < kth;
        const bool is_equal = i < n && code == kth;
        const Rank below = rank(is_below, warp_counts);
        const Rank equal = rank(is_equal, warp_counts);
        const std::uint32_t among_equals = found.equal + equal.before;
        if (is_below || (is_equal && among_equals < wanted_equals)) {
            const std::uint32_t position =
                is_below ? found.below + below.before : k - wanted_equals + among_equals;
            codes[position] = code;
            indices[position] = static_cast<std::uint32_t>(i);
        }
        found.below += below.all;
        found.equal += equal.all;
    }
}

template <class Bits>
__global__ void write_results(const Bits *codes, const std::uint32_t *indices, std::int64_t k,
                              KeyOrder<Bits> order, Bits *values_out, std::uint32_t *indices_out) {
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < k; i += stride) {
        if (values_out != nullptr) {
            values_out[i] = order.decode(codes[i]);
        }
        if (indices_out != nullptr) {
            indices_out[i] = indices[i];
        }
    }
}

template <class Bits>
cudaError_t select_kth(const Bits *keys, std::int64_t n, std::uint32_t k, KeyOrder<Bits> order,
                       Selection<Bits> *selection, cudaStream_t stream) {
    begin_selection<<<1, digits, 0, stream>>>(selection, k);
    Bits settled = 0;
    for (int low_bit = 8 * sizeof(Bits) - digit_bits; low_bit >= 0; low_bit -= digit_bits) {
        count_digits<<<blocks_for(n), block_threads, 0, stream>>>(keys, n, order, low_bit, settled,
                                                                  selection);
        settle_digit<<<1, digits, 0, stream>>>(low_bit, selection);
        settled |= Bits(digits - 1) << low_bit;
    }
    return cudaGetLastError();
}

template <class Bits>
cudaError_t collect_k(const Bits *keys, std::int64_t n, std::uint32_t k, KeyOrder<Bits> order,
                      const Selection<Bits> *selection, Slice *slices, Bits *codes,
                      std::uint32_t *indices, cudaStream_t stream) {
    const int count = static_cast<int>((n + slice_items(n) - 1) / slice_items(n));
    count_slices<<<count, block_threads, 0, stream>>>(keys, n, order, selection, slices);
    place_slices<<<1, most_slices, 0, stream>>>(slices, count);
    collect<<<count, block_threads, 0, stream>>>(keys, n, k, order, selection, slices, codes,
                                                 indices);
    return cudaGetLastError();
}

template <class Bits>
vecsort_status topk_as(const void *in, std::int64_t n, std::int64_t k, void *values_out,
                       void *indices_out, KeyOrder<Bits> order, cudaStream_t stream) {
    const Bits *const keys = static_cast<const Bits *>(in);
    Scratch<Selection<Bits>> selection(stream);
    Scratch<Slice> slices(stream);
    Scratch<Bits> codes(stream), spare_codes(stream);
    Scratch<std::uint32_t> indices(stream), spare_indices(stream);
    VECSORT_TRY(selection.allocate(1));
    VECSORT_TRY(slices.allocate(most_slices));
    VECSORT_TRY(codes.allocate(k));
    VECSORT_TRY(spare_codes.allocate(k));
    VECSORT_TRY(indices.allocate(k));
    VECSORT_TRY(spare_indices.allocate(k));
    const auto count = static_cast<std::uint32_t>(k);
    VECSORT_TRY(select_kth(keys, n, count, order, selection.get(), stream));
    VECSORT_TRY(collect_k(keys, n, count, order, selection.get(), slices.get(), codes.get(),
                          indices.get(), stream));
    Buffers<Bits> found{codes.get(), spare_codes.get()};
    Buffers<std::uint32_t> where{indices.get(), spare_indices.get()};
    VECSORT_TRY(sort_codes(found, where, k, stream));
    write_results<<<blocks_for(k), block_threads, 0, stream>>>(
        found.current, where.current, k, order, static_cast<Bits *>(values_out),
        static_cast<std::uint32_t *>(indices_out));
    VECSORT_TRY(cudaGetLastError());
    return VECSORT_OK;
}

vecsort_status check_topk(vecsort_dtype dtype, vecsort_order order, std::int64_t n,
                          std::int64_t k) {
    if (item_size(dtype) == 0) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "dtype is %d, which is none", dtype);
    }
    VECSORT_TRY(check_order(order));
    VECSORT_TRY(check_count(n));
    if (k < 0 || k > n) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "k is %lld, not between 0 and n = %lld",
                    static_cast<long long>(k), static_cast<long long>(n));
    }
    return VECSORT_OK;
}

// Both outputs are optional; those that are there must be apart from the input and from each other.
vecsort_status check_arrays(const Array &in, const Array &values, const Array &indices) {
    VECSORT_TRY(check_memory(in));
    for (const Array *out : {&values, &indices}) {
        if (out->data != nullptr) {
            VECSORT_TRY(check_memory(*out));
            VECSORT_TRY(check_overlap(in, *out, InPlace::no));
        }
    }
    return values.data != nullptr && indices.data != nullptr
               ? check_overlap(values, indices, InPlace::no)
               : VECSORT_OK;
}

} // namespace
} // namespace vecsort

using namespace vecsort;

extern "C" vecsort_status vecsort_topk(vecsort_dtype dtype, vecsort_order order, const void *in,
                                       int64_t n, int64_t k, void *values_out, int32_t *indices_out,
                                       void *stream) {
    VECSORT_TRY(check_topk(dtype, order, n, k));
    if (k == 0) {
        return VECSORT_OK;
    }
    VECSORT_TRY(check_arrays({"in", in, item_size(dtype), n},
                             {"values_out", values_out, item_size(dtype), k},
                             {"indices_out", indices_out, sizeof(int32_t), k}));
    return with_order(dtype, order, [=](auto key_order) {
        return topk_as(in, n, k, values_out, indices_out, key_order,
                       static_cast<cudaStream_t>(stream));
    });
}
