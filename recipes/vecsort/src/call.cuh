// What every function of the C API does around its kernels: check arguments, hold temporaries,
// report failures.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "vecsort.h"

// Leaves the function with the status of `expression` unless that is cudaSuccess (or VECSORT_OK).
#define VECSORT_TRY(expression)                                                                    \
    do {                                                                                           \
        if (const vecsort_status status_ = vecsort::status_of((expression), #expression)) {        \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

namespace vecsort {

// Keeps the text for vecsort_last_error and returns the status, so that a refusal is one line.
vecsort_status fail(vecsort_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

vecsort_status status_of(cudaError_t error, const char *expression);

inline vecsort_status status_of(vecsort_status status, const char *) {
    return status;
}

// An array that a caller handed in, as its refusals call it.
struct Array {
    const char *name;
    const void *data;
    std::size_t item_size;
    std::int64_t items;

    std::size_t bytes() const {
        return item_size * static_cast<std::size_t>(items);
    }
};

vecsort_status check_count(std::int64_t n);
vecsort_status check_order(vecsort_order order);

// Not null, aligned, and memory of the current device.
vecsort_status check_memory(const Array &array);

// Apart from each other, or (if the caller allows it) one and the same.
enum class InPlace : bool { no, yes };
vecsort_status check_overlap(const Array &input, const Array &output, InPlace in_place);

// Device memory in stream order: given back on every way out of a function.
template <class T> class Scratch {
  public:
    explicit Scratch(cudaStream_t stream) : stream_(stream) {
    }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    ~Scratch() {
        if (data_ != nullptr) {
            cudaFreeAsync(data_, stream_);
        }
    }

    // At least one item, because a null workspace means "how much?" to CUB.
    cudaError_t allocate(std::size_t items) {
        return cudaMallocAsync(reinterpret_cast<void **>(&data_),
                               sizeof(T) * (items > 0 ? items : 1), stream_);
    }

    T *get() const {
        return data_;
    }

  private:
    T *data_ = nullptr;
    cudaStream_t stream_;
};

// Asks one of CUB's functions how much memory it works in, and runs it with that much.
// `function` is called with a workspace and a number of bytes; `name` is for a failure's text.
template <class Function>
vecsort_status with_workspace(cudaStream_t stream, const char *name, Function function) {
    std::size_t bytes = 0;
    VECSORT_TRY(status_of(function(nullptr, bytes), name));
    Scratch<char> workspace(stream);
    VECSORT_TRY(workspace.allocate(bytes));
    return status_of(function(workspace.get(), bytes), name);
}

constexpr int block_threads = 256;

// Enough blocks to fill any GPU; kernels walk the rest with a stride.
inline unsigned blocks_for(std::int64_t items) {
    constexpr std::int64_t most = 4096;
    const std::int64_t blocks = (items + block_threads - 1) / block_threads;
    return static_cast<unsigned>(blocks < most ? blocks : most);
}

} // namespace vecsort
