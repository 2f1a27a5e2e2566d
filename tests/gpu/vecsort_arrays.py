"""Device arrays of whichever library is there, and what vecsort's results have to be by NumPy."""
# ruff: noqa: ANN401 (arrays and streams are whatever their library makes them)

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

Host = np.ndarray[Any, Any]

DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64")


class Framework(Protocol):
    """The functions of an array library that the checks need."""

    name: str

    def put(self, array: Host) -> Any:
        """Copy to the current device."""

    def get(self, array: Any) -> Host:
        """Wait for the device and copy back."""

    def repeated(self, array: Any, times: int) -> Any:
        """Concatenate copies on the device."""

    def free_memory(self) -> int:
        """Count the device's bytes that are free, this library's cache included."""

    def stream(self) -> Any:
        """Make a stream that doesn't synchronize with the default stream."""

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Make a stream the current one."""

    def busy(self) -> None:
        """Keep the current stream at work for some tens of milliseconds."""

    def sort(self, array: Any) -> Any:
        """Sort out of place, to compare times with."""

    def timed(self, work: Callable[[], object]) -> float:
        """Milliseconds between events on the current stream before and after some work."""


class Torch:
    """PyTorch."""

    name = "torch"

    def __init__(self) -> None:
        self.torch = importlib.import_module("torch")

    def put(self, array: Host) -> Any:
        return self.torch.from_numpy(np.ascontiguousarray(array)).cuda()

    def get(self, array: Any) -> Host:
        self.torch.cuda.synchronize()
        host: Host = array.cpu().numpy()
        return host

    def repeated(self, array: Any, times: int) -> Any:
        return array.repeat(times)

    def free_memory(self) -> int:
        self.torch.cuda.empty_cache()
        return int(self.torch.cuda.mem_get_info()[0])

    def stream(self) -> Any:
        return self.torch.cuda.Stream()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self.torch.cuda.stream(stream)
        return context

    def busy(self) -> None:
        matrix = self.torch.ones((4096, 4096), dtype=self.torch.float64, device="cuda")
        for _ in range(8):
            matrix = matrix @ matrix * 1e-4

    def sort(self, array: Any) -> Any:
        return self.torch.sort(array)

    def timed(self, work: Callable[[], object]) -> float:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop))


class Cupy:
    """CuPy."""

    name = "cupy"

    def __init__(self) -> None:
        self.cupy = importlib.import_module("cupy")

    def put(self, array: Host) -> Any:
        return self.cupy.asarray(array)

    def get(self, array: Any) -> Host:
        self.cupy.cuda.Device().synchronize()
        host: Host = self.cupy.asnumpy(array)
        return host

    def repeated(self, array: Any, times: int) -> Any:
        return self.cupy.tile(array, times)

    def free_memory(self) -> int:
        self.cupy.get_default_memory_pool().free_all_blocks()
        return int(self.cupy.cuda.runtime.memGetInfo()[0])

    def stream(self) -> Any:
        return self.cupy.cuda.Stream(non_blocking=True)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = stream
        return context

    def busy(self) -> None:
        matrix = self.cupy.ones((4096, 4096), dtype="float64")
        for _ in range(8):
            matrix = matrix @ matrix * 1e-4

    def sort(self, array: Any) -> Any:
        return self.cupy.sort(array)

    def timed(self, work: Callable[[], object]) -> float:
        start, stop = (self.cupy.cuda.Event() for _ in range(2))
        start.record()
        work()
        stop.record()
        stop.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, stop))


class InterfaceOnly:
    """An array that has nothing but ``__cuda_array_interface__``."""

    def __init__(self, array: Any) -> None:
        self.__cuda_array_interface__ = dict(array.__cuda_array_interface__)


def frameworks() -> Iterator[Framework]:
    """Those that are installed."""
    for kind in (Torch, Cupy):
        with contextlib.suppress(ImportError):
            yield kind()


def some_keys(dtype: str, size: int, *, seed: int, special: bool = True) -> Host:
    """Keys with many ties; with everything that is special in floating point unless told not to."""
    random = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        keys = random.integers(info.min, info.max, size, dtype=kind, endpoint=True)
        keys[::3] = random.integers(0, 5, keys[::3].size, dtype=kind)
        return keys
    keys = random.standard_normal(size).astype(kind)
    keys[::5] = np.round(keys[::5])
    if special:
        choice = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], kind)
        keys[::7] = random.choice(choice, keys[::7].size)
    return keys


def expected_order(keys: Host, *, descending: bool = False) -> Host:
    """The stable order that vecsort promises: -0.0 before 0.0, NaNs of either sign last."""
    codes, negative_nan = bits_of(keys), np.zeros(keys.size, bool)
    if keys.dtype.kind == "i":
        codes = codes ^ codes.dtype.type(1 << (8 * keys.itemsize - 1))
    elif keys.dtype.kind == "f":
        sign = codes.dtype.type(1 << (8 * keys.itemsize - 1))
        negative_nan = np.isnan(keys) & np.signbit(keys)
        codes = np.where(np.signbit(keys), ~codes, codes | sign)
    if descending:
        codes, negative_nan = ~codes, ~negative_nan
    return np.lexsort((codes, negative_nan))


def bits_of(array: Host) -> Host:
    """The items as unsigned integers, so that comparing them tells NaNs and zeros apart."""
    if array.dtype.kind == "c":
        return array.view(f"f{array.itemsize // 2}").view(f"u{array.itemsize // 2}")
    return array.view(f"u{array.itemsize}")


def require_same(found: Host, expected: Host, what: str) -> None:
    """AssertionError with the first difference, unless all bits are the same."""
    same = found.shape == expected.shape and found.dtype == expected.dtype
    if same and np.array_equal(bits_of(found), bits_of(expected)):
        return
    if not same:
        raise AssertionError(
            f"{what}: got {found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}"
        )
    first = int(np.flatnonzero(bits_of(found) != bits_of(expected))[0])
    raise AssertionError(
        f"{what}: the first difference is at {first}: got {found.ravel()[first : first + 3]}, "
        f"expected {expected.ravel()[first : first + 3]}"
    )


def require_close(found: Host, expected: Host, scale: float, what: str) -> None:
    """AssertionError unless sums are as near as their type lets them be."""
    tolerance = 8 * np.finfo(found.dtype).eps * max(scale, 1.0)
    worst = float(np.max(np.abs(found.astype("f8") - expected), initial=0.0))
    if not worst <= tolerance:
        raise AssertionError(f"{what}: off by {worst:g}, allowed are {tolerance:g}")
