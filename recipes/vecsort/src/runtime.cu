// Statuses, the checks that every function makes, and what the API has beside the algorithms.
#include <cudaTypedefs.h>

#include <cstdarg>
#include <cstdio>

#include "call.cuh"

namespace vecsort {
namespace {

thread_local char last_error[512] = "";

vecsort_status status_for(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation:
        return VECSORT_ERROR_OUT_OF_MEMORY;
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidKernelImage:
        return VECSORT_ERROR_NO_DEVICE_CODE;
    default:
        return VECSORT_ERROR_CUDA;
    }
}

constexpr int no_device = -1;

// The driver's own functions, because the runtime can neither tell nor set that a thread has no
// device: cudaGetDevice says 0 then, and cudaSetDevice(0) would spend memory on a GPU that the
// process doesn't use.
template <class Function> vecsort_status find_in_driver(const char *name, Function &function) {
    constexpr unsigned since_cuda_4 = 4000;
    void *found = nullptr;
    VECSORT_TRY(
        cudaGetDriverEntryPointByVersion(name, &found, since_cuda_4, cudaEnableDefault, nullptr));
    function = reinterpret_cast<Function>(found);
    return function != nullptr ? VECSORT_OK
                               : fail(VECSORT_ERROR_CUDA, "the driver has no %s", name);
}

vecsort_status current_device(int &device) {
    PFN_cuCtxGetCurrent_v4000 get_context = nullptr;
    VECSORT_TRY(find_in_driver("cuCtxGetCurrent", get_context));
    CUcontext context = nullptr;
    device = no_device;
    if (get_context(&context) == CUDA_SUCCESS && context != nullptr) {
        VECSORT_TRY(cudaGetDevice(&device));
    }
    return VECSORT_OK;
}

vecsort_status leave_device() {
    PFN_cuCtxSetCurrent_v4000 set_context = nullptr;
    VECSORT_TRY(find_in_driver("cuCtxSetCurrent", set_context));
    const CUresult result = set_context(nullptr);
    return result == CUDA_SUCCESS
               ? VECSORT_OK
               : fail(VECSORT_ERROR_CUDA, "cuCtxSetCurrent returned %d", int(result));
}

bool contains(const Array &array, const void *address) {
    const auto first = reinterpret_cast<std::uintptr_t>(array.data);
    const auto wanted = reinterpret_cast<std::uintptr_t>(address);
    return first <= wanted && wanted - first < array.bytes();
}

} // namespace

vecsort_status fail(vecsort_status status, const char *format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

vecsort_status status_of(cudaError_t error, const char *expression) {
    if (error == cudaSuccess) {
        return VECSORT_OK;
    }
    cudaGetLastError(); // an error that has been reported isn't the next call's
    return fail(status_for(error), "%s (%s) at: %s", cudaGetErrorString(error),
                cudaGetErrorName(error), expression);
}

vecsort_status check_count(std::int64_t n) {
    if (n < 0) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "n is %lld, below 0",
                    static_cast<long long>(n));
    }
    if (n > VECSORT_MAX_ITEMS) {
        return fail(VECSORT_ERROR_TOO_MANY_ITEMS, "n is %lld, beyond %lld",
                    static_cast<long long>(n), static_cast<long long>(VECSORT_MAX_ITEMS));
    }
    return VECSORT_OK;
}

vecsort_status check_order(vecsort_order order) {
    if (order != VECSORT_ASCENDING && order != VECSORT_DESCENDING) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT,
                    "order is %d: neither ascending (0) nor descending (1)", order);
    }
    return VECSORT_OK;
}

vecsort_status check_memory(const Array &array) {
    if (array.data == nullptr) {
        return fail(VECSORT_ERROR_INVALID_ARGUMENT, "%s is a null pointer", array.name);
    }
    if (reinterpret_cast<std::uintptr_t>(array.data) % array.item_size != 0) {
        return fail(VECSORT_ERROR_MISALIGNED, "%s (%p) isn't aligned to its items of %zu bytes",
                    array.name, array.data, array.item_size);
    }
    int current = 0;
    VECSORT_TRY(cudaGetDevice(&current));
    cudaPointerAttributes attributes{};
    VECSORT_TRY(cudaPointerGetAttributes(&attributes, array.data));
    if (attributes.type == cudaMemoryTypeManaged) {
        return VECSORT_OK;
    }
    if (attributes.type != cudaMemoryTypeDevice) {
        return fail(VECSORT_ERROR_NOT_ON_DEVICE, "%s (%p) is host memory, not memory of device %d",
                    array.name, array.data, current);
    }
    if (attributes.device != current) {
        return fail(VECSORT_ERROR_NOT_ON_DEVICE,
                    "%s (%p) is memory of device %d, but the current device is %d", array.name,
                    array.data, attributes.device, current);
    }
    return VECSORT_OK;
}

vecsort_status check_overlap(const Array &input, const Array &output, InPlace in_place) {
    if (in_place == InPlace::yes && input.data == output.data && input.bytes() == output.bytes()) {
        return VECSORT_OK;
    }
    if (contains(input, output.data) || contains(output, input.data)) {
        return fail(VECSORT_ERROR_OVERLAP, "%s and %s overlap", input.name, output.name);
    }
    return VECSORT_OK;
}

} // namespace vecsort

extern "C" {

int32_t vecsort_abi_version(void) {
    return VECSORT_ABI_VERSION;
}

const char *vecsort_version(void) {
    return VECSORT_VERSION;
}

const char *vecsort_error_string(vecsort_status status) {
    switch (status) {
    case VECSORT_OK:
        return "no error";
    case VECSORT_ERROR_INVALID_ARGUMENT:
        return "an argument is invalid";
    case VECSORT_ERROR_TOO_MANY_ITEMS:
        return "too many items";
    case VECSORT_ERROR_MISALIGNED:
        return "a pointer isn't aligned to its items";
    case VECSORT_ERROR_OVERLAP:
        return "arrays overlap";
    case VECSORT_ERROR_NOT_ON_DEVICE:
        return "a pointer isn't memory of the current device";
    case VECSORT_ERROR_OUT_OF_MEMORY:
        return "out of device memory";
    case VECSORT_ERROR_NO_DEVICE_CODE:
        return "this library has no code for the current device";
    case VECSORT_ERROR_CUDA:
        return "a CUDA call failed";
    case VECSORT_ERROR_SELF_TEST:
        return "the device gave a wrong result";
    default:
        return "unknown status";
    }
}

const char *vecsort_last_error(void) {
    return vecsort::last_error;
}

vecsort_status vecsort_set_device(int32_t device, int32_t *previous) {
    int current = vecsort::no_device;
    VECSORT_TRY(vecsort::current_device(current));
    if (device == vecsort::no_device) {
        VECSORT_TRY(vecsort::leave_device());
    } else if (device != current) {
        VECSORT_TRY(cudaSetDevice(device));
    }
    if (previous != nullptr) {
        *previous = current;
    }
    return VECSORT_OK;
}

vecsort_status vecsort_stream_wait(void *stream, void *other) {
    cudaEvent_t event = nullptr;
    VECSORT_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    cudaError_t error = cudaEventRecord(event, static_cast<cudaStream_t>(other));
    if (error == cudaSuccess) {
        error = cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0);
    }
    cudaEventDestroy(event); // takes effect once the event has come to pass
    VECSORT_TRY(error);
    return VECSORT_OK;
}

} // extern "C"
