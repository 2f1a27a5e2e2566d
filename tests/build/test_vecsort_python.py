"""vecsort's Python face without a GPU: real NumPy exporters relabelled as CUDA, a stand-in library.

What a GPU does with the calls is tested in tests/gpu.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

HERE = Path(__file__).parent
RECIPE = HERE.parents[1] / "recipes" / "vecsort"

LOADER = """
import ctypes

def load(device=0):
    if device == 9:
        raise RuntimeError("no plugin serves device 9")
    return ctypes.CDLL({library!r})
"""

_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_get_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)


class Relabelled:
    """A NumPy array whose DLPack capsules say that it is on a CUDA device."""

    # Where DLDevice lies in the two structs of dlpack.h.
    OFFSETS: ClassVar = {b"dltensor": 8, b"dltensor_versioned": 40}

    def __init__(
        self,
        array: np.ndarray[Any, Any],
        *,
        device: int = 0,
        type_: int = 2,
        major: int = 1,
        lanes: int = 1,
    ) -> None:
        self.array, self.device, self.type = array, device, type_
        self.major, self.lanes = major, lanes
        self.streams: list[object] = []
        self.capsules: list[object] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.type, self.device)

    def __dlpack__(self, *, stream: object, max_version: tuple[int, int]) -> object:
        self.streams.append(stream)
        return self.relabel(self.array.__dlpack__(max_version=max_version))

    def references(self) -> int:
        return sys.getrefcount(self.array)

    def relabel(self, capsule: object) -> object:
        name = _get_name(capsule)
        address = _get_pointer(capsule, name)
        placed = address + self.OFFSETS[name]
        (ctypes.c_int32 * 2).from_address(placed)[:] = [self.type, self.device]
        ctypes.c_uint16.from_address(placed + 14).value = self.lanes  # after ndim, code, bits
        if name == b"dltensor_versioned":
            ctypes.c_uint32.from_address(address).value = self.major
        self.capsules.append(capsule)
        return capsule


class OldRelabelled(Relabelled):
    """The same, from before there were versions: no ``max_version``, no flags."""

    def __dlpack__(self, *, stream: object) -> object:  # type: ignore[override]
        self.streams.append(stream)
        return self.relabel(self.array.__dlpack__())


@dataclass(frozen=True, slots=True, kw_only=True)
class Face:
    """The package over the stand-in library."""

    vecsort: ModuleType
    library: ctypes.CDLL
    folder: Path

    def calls(self) -> list[str]:
        self.library.stand_in_calls.restype = ctypes.c_char_p
        text: bytes = self.library.stand_in_calls()
        return text.decode().splitlines()


def compiled(source: str, library: Path, *options: str) -> Path:
    flags = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC", *options]
    subprocess.run(["gcc", *flags, str(HERE / source), "-o", str(library)], check=True)
    return library


@pytest.fixture(scope="module")
def face(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Face]:
    folder = tmp_path_factory.mktemp("vecsort")
    library = compiled(
        "stand_in_vecsort.c", folder / "libvecsort.so", "-I", str(RECIPE / "include")
    )
    package = folder / "vecsort"
    shutil.copytree(
        RECIPE / "python" / "vecsort", package, ignore=shutil.ignore_patterns("__pycache__")
    )
    (package / "_archsplit").mkdir()
    (package / "_archsplit" / "__init__.py").write_text(LOADER.format(library=str(library)))
    sys.path.insert(0, str(folder))
    try:
        vecsort = importlib.import_module("vecsort")
        assert "vecsort._archsplit" not in sys.modules  # importing opens nothing
        yield Face(vecsort=vecsort, library=ctypes.CDLL(str(library)), folder=folder)
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.split(".")[0] == "vecsort"]:
            del sys.modules[name]


@pytest.fixture(autouse=True)
def forget_calls(face: Face) -> None:
    face.calls()
    face.library.stand_in_plan(0)


def ones(dtype: str, size: int = 5) -> np.ndarray[Any, Any]:
    return np.ones(size, dtype=dtype)


def address(array: np.ndarray[Any, Any]) -> str:
    return hex(array.ctypes.data)


DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 4, "uint32": 5, "uint64": 6}


@pytest.mark.parametrize("kind", [Relabelled, OldRelabelled])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_without_out_works_in_place(face: Face, dtype: str, kind: type[Relabelled]) -> None:
    keys = kind(ones(dtype))
    assert face.vecsort.sort(keys) is keys
    where = address(keys.array)
    assert face.calls() == [
        "set_device 0",
        f"sort {DTYPES[dtype]} 0 {where} {where} 5 0x1",
        "set_device -1",
    ]
    assert keys.streams == [1]


def test_sort_with_out_and_stream_uses_both(face: Face) -> None:
    keys, out = Relabelled(ones("int64"), device=3), Relabelled(ones("int64"), device=3)
    assert face.vecsort.sort(keys, out=out, descending=True, stream=0x7F00) is out
    call = f"sort 4 1 {address(keys.array)} {address(out.array)} 5 0x7f00"
    assert face.calls() == ["set_device 3", call, "set_device -1"]
    assert keys.streams == out.streams == [0x7F00]


@pytest.mark.parametrize("kind", [Relabelled, OldRelabelled])
def test_a_capsule_is_used_once_and_given_back(face: Face, kind: type[Relabelled]) -> None:
    keys = kind(ones("float32"))
    before = keys.references()
    face.vecsort.sort(keys)
    (capsule,) = keys.capsules
    assert _get_name(capsule) in {b"used_dltensor", b"used_dltensor_versioned"}
    assert keys.references() == before  # so the exporter's deleter has run


def test_a_capsule_is_given_back_when_it_is_refused(face: Face) -> None:
    keys = Relabelled(ones("float16"))
    before = keys.references()
    with pytest.raises(TypeError, match=r"keys has items of type float16; expected float32, "):
        face.vecsort.sort(keys)
    assert keys.references() == before
    assert face.calls() == []


def test_another_major_of_dlpack_is_refused(face: Face) -> None:
    keys = Relabelled(ones("float32"), major=2)
    before = keys.references()
    with pytest.raises(BufferError, match=r"keys was exported as DLPack 2\.\d; expected 1\.x"):
        face.vecsort.sort(keys)
    assert keys.references() == before


def test_used_dlpack_capsule_is_refused(face: Face) -> None:
    keys = Relabelled(ones("float32"))
    face.vecsort.sort(keys)
    (used,) = keys.capsules
    again = SimpleNamespace(__dlpack__=lambda **_: used, __dlpack_device__=lambda: (2, 0))
    with pytest.raises(TypeError, match=r"keys: .* is not an unused DLPack capsule"):
        face.vecsort.sort(again)


def test_sort_pairs_passes_keys_and_values_to_the_library(face: Face) -> None:
    keys, values = Relabelled(ones("uint32")), Relabelled(ones("complex128"))
    keys_out, values_out = Relabelled(ones("uint32")), Relabelled(ones("complex128"))
    result = face.vecsort.sort_pairs(keys, values, keys_out=keys_out, values_out=values_out)
    assert result == (keys_out, values_out)
    arrays = " ".join(address(each.array) for each in (keys, keys_out, values, values_out))
    assert face.calls()[1] == f"sort_pairs 5 0 {arrays} 16 5 0x1"
    assert face.vecsort.sort_pairs(keys, values) == (keys, values)


@pytest.mark.parametrize(("dtype", "size"), [("bool", 1), ("float16", 2), ("int8", 1)])
def test_values_are_of_any_type(face: Face, dtype: str, size: int) -> None:
    face.vecsort.sort_pairs(Relabelled(ones("int32")), Relabelled(ones(dtype)))
    assert face.calls()[1].endswith(f" {size} 5 0x1")


def test_argsort_scan_and_reduce_pass_their_arrays_to_the_library(face: Face) -> None:
    items, indices = Relabelled(ones("float64")), Relabelled(ones("int32"))
    scalar = Relabelled(np.zeros((), np.float64))
    assert face.vecsort.argsort(items, out=indices, descending=True) is indices
    assert face.vecsort.scan(items, exclusive=True) is items
    assert face.vecsort.reduce(items, "max", out=scalar) is scalar
    where = address(items.array)
    assert [call for call in face.calls() if "set_device" not in call] == [
        f"argsort 2 1 {where} {address(indices.array)} 5 0x1",
        f"scan 2 1 {where} {where} 5 0x1",
        f"reduce 2 2 {where} {address(scalar.array)} 5 0x1",
    ]


def test_topk_needs_an_output_and_a_valid_k(face: Face) -> None:
    items = Relabelled(ones("float32"))
    values, indices = Relabelled(ones("float32", 2)), Relabelled(ones("int32", 2))
    face.vecsort.topk(items, 2, values_out=values, indices_out=indices)
    face.vecsort.topk(items, 2, indices_out=indices, largest=False)
    where, v, i = (address(each.array) for each in (items, values, indices))
    assert [call for call in face.calls() if "set_device" not in call] == [
        f"topk 1 1 {where} 5 2 {v} {i} 0x1",
        f"topk 1 0 {where} 5 2 (nil) {i} 0x1",
    ]
    with pytest.raises(TypeError, match="needs values_out, indices_out or both"):
        face.vecsort.topk(items, 2)
    with pytest.raises(ValueError, match="k is 6; expected 0 to 5"):
        face.vecsort.topk(items, 6, indices_out=indices)


def test_nothing_to_do_opens_nothing(face: Face) -> None:
    # Nothing would serve device 9.
    empty = Relabelled(ones("float32", 0), device=9)
    face.vecsort.sort(empty)
    face.vecsort.scan(empty)
    face.vecsort.topk(Relabelled(ones("float32"), device=9), 0, values_out=empty)
    assert face.calls() == []


def test_the_sum_of_nothing_is_written(face: Face) -> None:
    empty, out = Relabelled(ones("int32", 0)), Relabelled(ones("int32", 1))
    face.vecsort.reduce(empty, "sum", out=out)
    assert face.calls()[1].startswith("reduce 3 0 ")
    with pytest.raises(ValueError, match="items is empty, which has no min"):
        face.vecsort.reduce(empty, "min", out=out)
    with pytest.raises(ValueError, match="operation is 'mean'; expected sum, min, max"):
        face.vecsort.reduce(empty, "mean", out=out)


def read_only(dtype: str) -> np.ndarray[Any, Any]:
    array = ones(dtype)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("keys", "out", "error", "message"),
    [
        ([1.0], None, TypeError, "keys is a list, which has neither"),
        (ones("float32"), None, ValueError, "keys is in the CPU's memory; expected a CUDA"),
        (Relabelled(ones("int32"), type_=3), None, ValueError, "in pinned host memory"),
        (Relabelled(ones("int32"), type_=8), None, ValueError, "memory of DLPack device type 8"),
        (Relabelled(np.ones((2, 3), "f4")), None, ValueError, r"keys has shape \(2, 3\)"),
        (Relabelled(ones("f4", 9)[::2]), None, ValueError, "not contiguous: its stride is 2 items"),
        (Relabelled(read_only("f4")), None, ValueError, "keys is read-only"),
        (Relabelled(ones("f4")), Relabelled(read_only("f4")), ValueError, "out is read-only"),
        (Relabelled(ones("f4")), Relabelled(ones("f8")), TypeError, "out has .* expected float32"),
        (Relabelled(ones("f4")), Relabelled(ones("f4", 4)), ValueError, "out has 4 .* expected 5"),
        (
            Relabelled(ones("f4")),
            Relabelled(ones("f4"), device=1),
            ValueError,
            "different devices: keys on device 0, out on device 1",
        ),
    ],
)
def test_invalid_arrays_are_refused_before_any_call(
    face: Face, keys: object, out: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        face.vecsort.sort(keys, out=out)
    assert face.calls() == []


def test_values_of_wrong_length_or_type_are_refused(face: Face) -> None:
    keys = Relabelled(ones("int32"))
    with pytest.raises(ValueError, match="values has 4 items; expected 5, as keys"):
        face.vecsort.sort_pairs(keys, Relabelled(ones("int32", 4)))
    vectors = Relabelled(ones("complex128"), lanes=2)
    with pytest.raises(TypeError, match="values has items of 32 bytes; expected 1, 2, 4, 8, 16"):
        face.vecsort.sort_pairs(keys, vectors)
    with pytest.raises(TypeError, match="keys has items of type complex128x2; expected float32"):
        face.vecsort.sort(vectors)


@pytest.mark.parametrize(
    ("stream", "handle"),
    [
        (None, 1),
        (0, 1),
        (2, 2),
        (0x55AA, 0x55AA),
        (SimpleNamespace(cuda_stream=0), 1),  # PyTorch's default stream
        (SimpleNamespace(ptr=0x55AA), 0x55AA),
        (SimpleNamespace(__cuda_stream__=lambda: (0, 0x66)), 0x66),
        (SimpleNamespace(__cuda_stream__=(0, 0x77)), 0x77),
    ],
)
def test_stream_forms_become_the_expected_handle(face: Face, stream: object, handle: int) -> None:
    keys = Relabelled(ones("int32"))
    face.vecsort.sort(keys, stream=stream)
    assert keys.streams == [handle]
    assert face.calls()[1].endswith(hex(handle))


def test_invalid_streams_are_refused(face: Face) -> None:
    keys = Relabelled(ones("int32"))
    for stream in (True, "default", object()):
        with pytest.raises(TypeError, match=r"stream is a .*; expected None, a cudaStream_t"):
            face.vecsort.sort(keys, stream=stream)
    with pytest.raises(ValueError, match="stream is -5"):
        face.vecsort.sort(keys, stream=-5)


def test_library_error_raises_and_restores_the_device(face: Face) -> None:
    face.library.stand_in_plan(8)
    with pytest.raises(face.vecsort.VecsortError) as caught:
        face.vecsort.sort(Relabelled(ones("int32")))
    assert str(caught.value) == "vecsort_sort: a CUDA call failed: planned by the test"
    assert caught.value.status == 8
    assert face.calls()[-1] == "set_device -1"  # also when the call failed


def test_device_without_a_plugin_is_refused(face: Face) -> None:
    with pytest.raises(RuntimeError, match="no plugin serves device 9"):
        face.vecsort.sort(Relabelled(ones("int32"), device=9))


def test_self_test_returns_device_and_time(face: Face) -> None:
    result = face.vecsort.self_test(1000)
    assert result == face.vecsort.SelfTest(
        device_name="Stand-in", capability="9.0", items=1000, milliseconds=0.5
    )


def child(face: Face, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python where libcuda.so.1 is the stand-in."""
    if not (face.folder / "libcuda.so.1").exists():
        compiled("stand_in_cuda.c", face.folder / "libcuda.so.1")
    paths = {"PYTHONPATH": str(face.folder), "LD_LIBRARY_PATH": str(face.folder)}
    return subprocess.run(
        [sys.executable, "-W", "error", *script.split()]
        if script.startswith("-m ")
        else [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **paths, **environment},
    )


INTERFACE = """
    import ctypes
    import numpy as np
    import vecsort
    from vecsort._library import library_for

    class Exporter:
        '''NumPy's own interface, under CUDA's name.'''
        def __init__(self, array, **more):
            self.__cuda_array_interface__ = {{**array.__array_interface__, "version": 3, **more}}

    loaded = library_for(0)._loaded
    loaded.stand_in_calls.restype = ctypes.c_char_p
    {body}
    print(loaded.stand_in_calls().decode(), end="")
"""


def interface(face: Face, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return child(face, INTERFACE.format(body=body), **environment)


def test_cuda_array_interface_is_accepted(face: Face) -> None:
    body = "vecsort.sort(Exporter(np.ones(5, 'u8'), stream=None))"
    done = interface(face, body, STAND_IN_DEVICE="2")
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert (first, third) == ("set_device 2", "set_device -1")
    assert second.startswith("sort 6 0 0x")
    assert second.endswith(" 5 0x1")


def test_the_interface_names_a_stream_to_wait_for(face: Face) -> None:
    body = "vecsort.sort(Exporter(np.ones(5, 'f4'), stream=0x99), stream=0x55)"
    done = interface(face, body, STAND_IN_DEVICE="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1] == "stream_wait 0x55 0x99"
    assert done.stdout.splitlines()[2].endswith("0x55")
    same = "vecsort.sort(Exporter(np.ones(5, 'f4'), stream=0x55), stream=0x55)"
    assert "stream_wait" not in interface(face, same, STAND_IN_DEVICE="0").stdout


def test_empty_array_interface_makes_no_call(face: Face) -> None:
    done = interface(face, "vecsort.sort(Exporter(np.ones(0, 'f4')))")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        ("np.ones(5, '>f4')", "TypeError: keys has items of type >f4; expected little-endian"),
        ("np.ones(9, 'f4')[::3]", "ValueError: keys is not contiguous: its stride is 12 bytes"),
        ("np.ones((2, 2), 'f4')", "ValueError: keys has shape (2, 2); expected one dimension"),
        ("np.ones(5, 'M8[s]')", "TypeError: keys has items of type <M8[s]; expected numbers"),
        ("np.broadcast_to(np.float32(1), 1)", "ValueError: keys is read-only"),
        ("np.ones(5, 'f4'), mask=1", "TypeError: keys is masked"),
    ],
)
def test_invalid_array_interfaces_are_refused(face: Face, array: str, message: str) -> None:
    done = interface(face, f"vecsort.sort(Exporter({array}))", STAND_IN_DEVICE="0")
    assert done.returncode == 1
    assert message in done.stderr


def test_array_interface_to_host_memory_is_refused(face: Face) -> None:
    done = interface(face, "vecsort.sort(Exporter(np.ones(5, 'f4')))")
    assert "ValueError: keys is not CUDA memory (the driver says 1 about 0x" in done.stderr


def test_the_module_runs_the_self_test(face: Face) -> None:
    done = child(face, "-m vecsort")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "vecsort 1.0.0: sorted 10,000,000 random float32 on Stand-in (capability 9.0) in "
        "0.500 ms, 20.0 billion a second: every neighbour in order, no item lost.\n"
    )


def test_unserved_module_calls_the_doctor(face: Face, tmp_path: Path) -> None:
    package = Path(shutil.copytree(face.folder / "vecsort", tmp_path / "vecsort"))
    (package / "_archsplit" / "__init__.py").write_text("def load(device): raise RuntimeError\n")
    doctor = 'print("the doctor speaks")\nraise SystemExit(0)\n'
    (package / "doctor.py").write_text(doctor)
    done = child(face, "-m vecsort", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "the doctor speaks\n", "")
