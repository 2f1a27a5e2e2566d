"""Operations of CuPy for `operations_on_gpu.py`: cuRAND and the sparse solvers are here."""

from __future__ import annotations

import importlib
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from gpu_operation import Operation, digest_arrays, flatten

if TYPE_CHECKING:
    from collections.abc import Iterator


def _module(name: str = "cupy") -> Any:  # noqa: ANN401 (a module)
    return importlib.import_module(name)


def digest(value: Any) -> str:  # noqa: ANN401 (an array, or several)
    """Return the SHA-256 of the bytes of an array, or of several."""
    return digest_arrays([np.asarray(_on_host(part)) for part in flatten(value)])


def _on_host(part: Any) -> Any:  # noqa: ANN401 (an array)
    part = part.toarray() if hasattr(part, "toarray") else part
    return part.get() if hasattr(part, "get") else part


def random(*shape: int, dtype: str = "f4") -> Any:  # noqa: ANN401 (an array)
    """Return normal numbers that are the same for the same shape."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return _module().asarray(values.astype(dtype))


def operations(device: str) -> Iterator[Operation]:
    """Yield all operations."""
    del device
    for name, libraries, run in (*_dense(), *_others(), *_numbers(), *_sparse()):
        yield Operation(name=f"cupy {name}", libraries=tuple(libraries.split()), run=run)


def _dense() -> Iterator[tuple[str, str, Any]]:
    cupy = _module()
    for d in ("f4", "f8", "f2", "c8"):
        yield (
            f"matmul {d}",
            "cublas",
            partial(lambda d: random(70, 90, dtype=d) @ random(90, 50, dtype=d), d),
        )
    for d in ("f4", "f8", "c16"):
        for size in (64, 1000, 1009):
            yield (
                f"fft {d} {size}",
                "cufft",
                partial(lambda d, s: cupy.fft.fft(random(5, s, dtype=d)), d, size),
            )
        yield f"fftn {d}", "cufft", partial(lambda d: cupy.fft.fftn(random(12, 15, 16, dtype=d)), d)
        for name in ("svd", "qr", "inv", "det"):
            yield (
                f"{name} {d}",
                "cusolver cublas",
                partial(lambda n, d: getattr(cupy.linalg, n)(random(40, 40, dtype=d)), name, d),
            )
        yield f"eigh {d}", "cusolver", partial(lambda d: cupy.linalg.eigvalsh(_positive(d)), d)
        yield f"cholesky {d}", "cusolver", partial(lambda d: cupy.linalg.cholesky(_positive(d)), d)


def _positive(dtype: str) -> Any:  # noqa: ANN401 (an array)
    values = random(40, 40, dtype=dtype)
    return values @ values.conj().T + 40 * _module().eye(40, dtype=dtype)


def _others() -> Iterator[tuple[str, str, Any]]:
    cupy = _module()
    yield "elementwise", "cupy nvrtc", lambda: cupy.sin(random(1000)) * 2
    yield "reduction", "cupy nvrtc", lambda: random(100, 100).sum(axis=0)
    yield "sort", "cupy", lambda: cupy.sort(random(10000))
    yield "argsort", "cupy", lambda: cupy.argsort(random(10000))
    yield "lexsort", "cupy", lambda: cupy.lexsort(random(2, 1000))
    yield "max", "cupy", lambda: random(100000).max()
    yield "histogram", "cupy", lambda: cupy.histogram(random(10000), bins=20)[0]
    yield "raw kernel", "nvrtc", _raw_kernel
    yield (
        "filter",
        "cupy nvrtc",
        lambda: _module("cupyx.scipy.ndimage").gaussian_filter(random(50, 50), 2),
    )
    yield "all-reduce of one rank", "nccl", _reduce


def _raw_kernel() -> Any:  # noqa: ANN401 (an array)
    cupy = _module()
    code = 'extern "C" __global__ void twice(float* x) { x[blockIdx.x * 64 + threadIdx.x] *= 2; }'
    values = random(640)
    cupy.RawKernel(code, "twice")((10,), (64,), (values,))
    return values


def _reduce() -> Any:  # noqa: ANN401 (an array)
    cupy = _module()
    nccl = _module("cupy.cuda.nccl")
    values, result = random(1000), cupy.zeros(1000, dtype="f4")
    group = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    stream = cupy.cuda.Stream.null
    group.allReduce(
        values.data.ptr, result.data.ptr, 1000, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
    )
    stream.synchronize()
    return result


def _numbers() -> Iterator[tuple[str, str, Any]]:
    cupy = _module()
    for d in ("f4", "f8"):
        for name in ("random_sample", "standard_normal", "standard_exponential"):
            yield (
                f"{name} {d}",
                "curand",
                partial(lambda n, d: getattr(_state(), n)(5000, dtype=d), name, d),
            )
    yield "lognormal", "curand", lambda: _state().lognormal(size=5000)
    yield "integers", "curand", lambda: _state().randint(0, 1000, 5000)
    for name in ("XORWOW", "MRG32K3A", "MTGP32", "MT19937", "PHILOX4_32_10"):
        yield f"generator {name}", "curand", partial(lambda n: _state(n).random_sample(5000), name)
    yield "default_rng", "cupy", lambda: cupy.random.default_rng(1).standard_normal(5000)


def _state(name: str = "XORWOW") -> Any:  # noqa: ANN401 (a generator)
    cupy = _module()
    curand = _module("cupy_backends.cuda.libs.curand")
    return cupy.random.RandomState(1, method=getattr(curand, f"CURAND_RNG_PSEUDO_{name}"))


def _sparse() -> Iterator[tuple[str, str, Any]]:
    cupy, sparse = _module(), _module("cupyx.scipy.sparse")

    def rows(d: str) -> Any:  # noqa: ANN401
        values = random(60, 60, dtype=d)
        return sparse.csr_matrix(values * (abs(values) > 1))

    for d in ("f4", "f8"):
        yield f"csr mm {d}", "cusparse", partial(lambda d: rows(d) @ random(60, 20, dtype=d), d)
        yield f"csr csr {d}", "cusparse", partial(lambda d: rows(d) @ rows(d), d)
        yield f"csr mv {d}", "cusparse", partial(lambda d: rows(d) @ random(60, dtype=d), d)
        yield f"csc {d}", "cusparse", partial(lambda d: rows(d).tocsc().toarray(), d)
        yield (
            f"spsolve {d}",
            "cusolver cusparse",
            partial(
                lambda d: _module("cupyx.scipy.sparse.linalg").spsolve(
                    sparse.csr_matrix(cupy.eye(60, dtype=d) * 5) + rows(d) * 0.1,
                    random(60, dtype=d),
                ),
                d,
            ),
        )
