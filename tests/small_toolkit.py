"""A toolkit with NVIDIA's own tools, whose ``cuda_runtime.h`` is small.

nvcc reads that header four times for each source, and its declarations cost more than three
quarters of the CPU seconds of a compilation: 0.9, and 0.2 with this one. For tests of which files
and steps count, not of what the headers declare.
"""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COPIES = ("nvcc", "nvcc.profile", "*.h", "*.hpp")
"""Files beside which nvcc and gcc look for others, behind links; the others are links."""

HEADERS = {
    # Declarations for `kernel<<<1, 32>>>()`, its host code and `assert`, as in NVIDIA's headers.
    "cuda_runtime.h": """\
#pragma once
#define __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
#include "crt/host_config.h"
#include "builtin_types.h"
#include "cuda_runtime_api.h"
#include "crt/host_defines.h"
#include "vector_functions.h"
#include "device_launch_parameters.h"
#if defined(__CUDACC__) && defined(__cplusplus)
#ifdef __CUDACC_EXTENDED_LAMBDA__
#include <utility>
struct __device_builtin__ __nv_lambda_preheader_injection {};
#endif
extern "C" __host__ __device__ unsigned CUDARTAPI __cudaPushCallConfiguration(
    dim3 grid, dim3 block = 1, size_t shared = 0, struct CUstream_st *stream = 0);
extern "C" cudaError_t CUDARTAPI __cudaGetKernel(cudaKernel_t *, const void *);
extern "C" cudaError_t CUDARTAPI __cudaLaunchKernel(
    cudaKernel_t, dim3, dim3, void **, size_t, cudaStream_t);
extern "C" __host__ __device__ __cudart_builtin__ void __assert_fail(
    const char *, const char *, unsigned, const char *) __THROW;
static inline cudaError_t __cudaLaunchKernel_helper(
    cudaKernel_t kernel, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
template <class T> static __inline__ __host__ cudaError_t cudaMalloc(T **pointer, size_t size) {
  return ::cudaMalloc((void **)(void *)pointer, size);
}
#endif
#undef __CUDA_INCLUDE_COMPILER_INTERNAL_HEADERS__
""",
    # The generated host code includes it once more, for functions that these sources don't call.
    "crt/common_functions.h": "#pragma once\n",
}


def make_small_toolkit(nvcc: Path, site: Path) -> Path:
    """Return the nvcc of a toolkit of links with the small headers.

    Beside it are links to the metadata of NVIDIA's wheels, which have the licenses.
    """
    original = nvcc.parent.parent
    root = site.joinpath(*original.parts[-2:])
    for name, text in HEADERS.items():
        (root / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "include" / name).write_text(text)
    (root / "bin").mkdir()
    for folder in ("", "bin", "include", "include/crt"):
        for path in (original / folder).iterdir():
            own = root / folder / path.name
            if own.exists():
                continue
            if any(path.match(name) for name in COPIES):
                shutil.copy(path, own)
            else:
                own.symlink_to(path)
    for path in original.parents[1].glob("nvidia_*.dist-info"):
        (site / path.name).symlink_to(path)
    # The cache trusts the times of files that are older than two seconds, as a toolkit's are.
    time.sleep(2.1)
    return root / "bin" / "nvcc"
