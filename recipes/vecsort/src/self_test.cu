// vecsort_self_test: what a user runs to see that this plugin works on this GPU. Needs no Python
// package.
#include <cstring>

#include "call.cuh"

namespace vecsort {
namespace {

// What the device finds about an array.
struct Finding {
    unsigned long long checksum;     // of the items, whatever their order
    unsigned long long out_of_order; // neighbours
};

// Well mixed bits of a counter: the finalizer of SplitMix64.
__host__ __device__ inline std::uint64_t mixed(std::uint64_t counter) {
    std::uint64_t z = counter + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

__global__ void fill(float *items, std::int64_t n) {
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        items[i] = static_cast<float>(static_cast<std::int32_t>(mixed(i))) * 0x1p-31f;
    }
}

__global__ void inspect(const float *items, std::int64_t n, Finding *finding) {
    Finding mine{0, 0};
    const std::int64_t stride = std::int64_t(gridDim.x) * blockDim.x;
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        mine.checksum += mixed(__float_as_uint(items[i]));
        mine.out_of_order += i > 0 && !(items[i - 1] <= items[i]);
    }
    atomicAdd(&finding->checksum, mine.checksum);
    atomicAdd(&finding->out_of_order, mine.out_of_order);
}

// A stream and two events that go away by themselves.
struct Clock {
    cudaStream_t stream = nullptr;
    cudaEvent_t start = nullptr;
    cudaEvent_t stop = nullptr;

    Clock() = default;
    Clock(const Clock &) = delete;
    Clock &operator=(const Clock &) = delete;
    ~Clock() {
        for (cudaEvent_t event : {start, stop}) {
            if (event != nullptr) {
                cudaEventDestroy(event);
            }
        }
        if (stream != nullptr) {
            cudaStreamDestroy(stream);
        }
    }

    vecsort_status create() {
        VECSORT_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        VECSORT_TRY(cudaEventCreate(&start));
        VECSORT_TRY(cudaEventCreate(&stop));
        return VECSORT_OK;
    }
};

vecsort_status describe_device(vecsort_self_test_report &report) {
    int device = 0;
    cudaDeviceProp properties;
    VECSORT_TRY(cudaGetDevice(&device));
    VECSORT_TRY(cudaGetDeviceProperties(&properties, device));
    static_assert(sizeof report.device_name == sizeof properties.name, "CUDA's names fit ours");
    std::memcpy(report.device_name, properties.name, sizeof report.device_name);
    report.device = device;
    report.capability_major = properties.major;
    report.capability_minor = properties.minor;
    return VECSORT_OK;
}

vecsort_status look(const float *items, std::int64_t n, Finding *on_device, Finding &finding,
                    cudaStream_t stream) {
    VECSORT_TRY(cudaMemsetAsync(on_device, 0, sizeof(Finding), stream));
    inspect<<<blocks_for(n), block_threads, 0, stream>>>(items, n, on_device);
    VECSORT_TRY(cudaGetLastError());
    VECSORT_TRY(
        cudaMemcpyAsync(&finding, on_device, sizeof(Finding), cudaMemcpyDeviceToHost, stream));
    VECSORT_TRY(cudaStreamSynchronize(stream));
    return VECSORT_OK;
}

vecsort_status time_sort(const float *in, float *out, std::int64_t n, const Clock &clock,
                         double &fastest) {
    for (int round = 0; round < 4; ++round) {
        float milliseconds = 0;
        VECSORT_TRY(cudaEventRecord(clock.start, clock.stream));
        VECSORT_TRY(vecsort_sort(VECSORT_FLOAT32, VECSORT_ASCENDING, in, out, n, clock.stream));
        VECSORT_TRY(cudaEventRecord(clock.stop, clock.stream));
        VECSORT_TRY(cudaEventSynchronize(clock.stop));
        VECSORT_TRY(cudaEventElapsedTime(&milliseconds, clock.start, clock.stop));
        // The first round also loads the kernels.
        if (round == 1 || (round > 1 && milliseconds < fastest)) {
            fastest = milliseconds;
        }
    }
    return VECSORT_OK;
}

vecsort_status sort_and_look(vecsort_self_test_report &report) {
    Clock clock;
    VECSORT_TRY(clock.create());
    Scratch<float> in(clock.stream), out(clock.stream);
    Scratch<Finding> on_device(clock.stream);
    VECSORT_TRY(in.allocate(report.n));
    VECSORT_TRY(out.allocate(report.n));
    VECSORT_TRY(on_device.allocate(1));
    fill<<<blocks_for(report.n), block_threads, 0, clock.stream>>>(in.get(), report.n);
    VECSORT_TRY(cudaGetLastError());
    VECSORT_TRY(time_sort(in.get(), out.get(), report.n, clock, report.milliseconds));
    Finding before{}, after{};
    VECSORT_TRY(look(in.get(), report.n, on_device.get(), before, clock.stream));
    VECSORT_TRY(look(out.get(), report.n, on_device.get(), after, clock.stream));
    report.out_of_order = static_cast<std::int64_t>(after.out_of_order);
    report.same_items = before.checksum == after.checksum;
    return VECSORT_OK;
}

} // namespace
} // namespace vecsort

using namespace vecsort;

extern "C" vecsort_status vecsort_self_test(int64_t n, vecsort_self_test_report *report) {
    VECSORT_TRY(check_count(n));
    if (n == 0 || report == nullptr || report->struct_size < sizeof(uint32_t)) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT,
                    "a self-test needs items and a report whose struct_size is set");
    }
    vecsort_self_test_report result{};
    const std::size_t known =
        sizeof result < report->struct_size ? sizeof result : report->struct_size;
    result.struct_size = static_cast<uint32_t>(known);
    result.n = n;
    VECSORT_TRY(describe_device(result));
    VECSORT_TRY(sort_and_look(result));
    std::memcpy(report, &result, known);
    if (result.out_of_order != 0 || result.same_items == 0) {
        return fail(VECSORT_ERROR_SELF_TEST, "%lld neighbours out of order, %s",
                    static_cast<long long>(result.out_of_order),
                    result.same_items != 0 ? "all items there" : "items lost or made up");
    }
    return VECSORT_OK;
}
