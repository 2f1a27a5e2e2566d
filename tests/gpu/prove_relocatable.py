"""Prove on GPUs that NCCL computes the same bytes without the input of its device link.

Made on a machine with archsplit, for GPUs of one kind, so that it is small enough to copy:

    pip download --no-deps --dest fat nvidia-nccl-cu12==2.31.2
    archsplit slim fat/*.whl --keep sm_90 --keep-ptx none --out slim
    archsplit split slim/*.whl --out nccl

Then on the machine with the GPUs: ``python tests/gpu/prove_relocatable.py nccl``, with the numbers
of some settings if not all are to run. It needs the driver and Python, and nothing else: no
network, no package. With the pack ``rest`` the loader gives NCCL the relocatable code too, and
without it the linked code only. All collectives of all types run both ways, for each algorithm and
protocol, in a process of their own, and on all GPUs at once.
"""

from __future__ import annotations

import array
import ctypes
import functools
import hashlib
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path
from statistics import median
from typing import Any

SIZES = (1, 1000, 1 << 20)
PERIOD = 4099
ROUNDS = 5
SECONDS = 250
SETTINGS = (
    {},
    {"CUDA_MODULE_LOADING": "EAGER"},
    *(
        {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol}
        for algorithm in ("Ring", "Tree")
        for protocol in ("LL", "LL128", "Simple")
    ),
)
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "avg": 4}
_FLOAT8 = {"float8e4m3": b"\x38\x40\xb8\x30", "float8e5m2": b"\x3c\x40\xbc\x38"}
"""1, 2, -1 and 0.5: random bytes would be NaN, whose bits may differ."""
TYPES = {
    "int8": (0, 1),
    "uint8": (1, 1),
    "int32": (2, 4),
    "uint32": (3, 4),
    "int64": (4, 8),
    "uint64": (5, 8),
    "float16": (6, 2),
    "float32": (7, 4),
    "float64": (8, 8),
    "bfloat16": (9, 2),
    "float8e4m3": (10, 1),
    "float8e5m2": (11, 1),
}
"""The numbers of ``ncclDataType_t``, and bytes."""


@functools.cache
def content(kind: str, count: int, rank: int) -> bytes:
    """Return values of a type that no operation makes infinite; they repeat after a prime number.

    With random numbers for all of them, Python takes minutes and NCCL seconds.
    """
    chosen = random.Random(f"{kind} {count} {rank}")
    if kind in _FLOAT8:
        return (bytes(chosen.choices(_FLOAT8[kind], k=PERIOD)) * (count // PERIOD + 1))[:count]
    values = (chosen.choices((-2, -1, -0.5, 0.5, 1, 3), k=PERIOD) * (count // PERIOD + 1))[:count]
    if kind == "float16":
        return struct.pack(f"<{count}e", *values)
    if kind == "float64":
        return array.array("d", values).tobytes()
    singles = array.array("f", values).tobytes()
    if kind == "bfloat16":
        return b"".join(singles[at + 2 : at + 4] for at in range(0, len(singles), 4))
    return singles if kind == "float32" else chosen.randbytes(count * TYPES[kind][1])


class Gpu:
    """A GPU with two buffers, used through the driver."""

    def __init__(self, driver: ctypes.CDLL, number: int, size: int) -> None:
        self._driver, self.size = driver, size
        device, self._context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), number)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        self.enter()
        self.source, self.target = ctypes.c_uint64(), ctypes.c_uint64()
        for pointer in (self.source, self.target):
            self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))

    def call(self, name: str, *words: object) -> None:
        if status := getattr(self._driver, name)(*words):
            raise RuntimeError(f"{name} returns {status}")

    def enter(self) -> None:
        self.call("cuCtxSetCurrent", self._context)

    def write(self, data: bytes) -> None:
        self.enter()
        self.call("cuMemcpyHtoD_v2", self.source, data, ctypes.c_size_t(len(data)))
        self.call("cuMemsetD8_v2", self.target, ctypes.c_ubyte(0), ctypes.c_size_t(self.size))

    def digest(self, size: int) -> str:
        self.enter()
        self.call("cuCtxSynchronize")
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, self.target, ctypes.c_size_t(size))
        return hashlib.sha256(data.raw).hexdigest()[:16]


class Nccl:
    """Collectives of all GPUs, from one thread."""

    def __init__(self, library: str) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        count = ctypes.c_int()
        driver.cuDeviceGetCount(ctypes.byref(count))
        self.library = ctypes.CDLL(library)
        self.library.ncclGetErrorString.restype = ctypes.c_char_p
        most = max(SIZES) * 8 * count.value
        self.gpus = [Gpu(driver, number, most) for number in range(count.value)]
        self.communicators = (ctypes.c_void_p * len(self.gpus))()
        began = time.perf_counter()
        self.call("ncclCommInitAll", self.communicators, len(self.gpus), None)
        self.collect("ncclAllReduce", "float32", 1, 0)
        self.seconds = time.perf_counter() - began

    def call(self, name: str, *words: object) -> None:
        if status := getattr(self.library, name)(*words):
            raise RuntimeError(f"{name}: {self.library.ncclGetErrorString(status).decode()}")

    def collect(self, name: str, kind: str, count: int, *words: int) -> list[str]:
        """Run a collective on all GPUs, and return the digests of all results."""
        number, size = TYPES[kind]
        for rank, gpu in enumerate(self.gpus):
            gpu.write(content(kind, count * (len(self.gpus) if "Scatter" in name else 1), rank))
        self.call("ncclGroupStart")
        for rank, (gpu, communicator) in enumerate(zip(self.gpus, self.communicators, strict=True)):
            one, stream = ctypes.c_void_p(communicator), None
            length = ctypes.c_size_t(count)
            if name == "sendrecv":
                peer = len(self.gpus) - 1 - rank
                self.call("ncclSend", gpu.source, length, number, peer, one, stream)
                self.call("ncclRecv", gpu.target, length, number, peer, one, stream)
            else:
                self.call(name, gpu.source, gpu.target, length, number, *words, one, stream)
        self.call("ncclGroupEnd")
        result = size * count * (len(self.gpus) if "Gather" in name else 1)
        return [gpu.digest(result) for gpu in self.gpus]

    def everything(self) -> dict[str, str]:
        """Return the results of all collectives."""
        cases: list[tuple[str, tuple[int, ...], str]] = [
            ("ncclBroadcast", (len(self.gpus) - 1,), "broadcast"),
            ("ncclAllGather", (), "all_gather"),
            ("sendrecv", (), "send and receive"),
        ]
        for how, number in OPERATIONS.items():
            cases.append(("ncclAllReduce", (number,), f"all_reduce {how}"))
            cases.append(("ncclReduceScatter", (number,), f"reduce_scatter {how}"))
            cases.append(("ncclReduce", (number, 0), f"reduce {how}"))
        results = {}
        for name, words, label in cases:
            for kind in TYPES:
                for count in SIZES:
                    try:
                        found = " ".join(self.collect(name, kind, count, *words))
                    except RuntimeError as error:
                        found = str(error)
                    results[f"{label} {kind} {count}"] = found
        return results


def loaded_packs() -> list[str]:
    """Return the names of the packs that this process has mapped."""
    rows = Path("/proc/self/maps").read_text().splitlines()
    return sorted({row.split("/")[-2] for row in rows if row.endswith("device.pack")})


def unpack(folder: Path, out: Path) -> dict[str, Path]:
    """Unpack the wheels of a folder twice: all of them, and all but the pack ``rest``."""
    sites = {"with input": out / "with", "without": out / "without"}
    for how, site in sites.items():
        for wheel in sorted(folder.glob("*.whl")):
            # Of the packs, `rest` has the relocatable code.
            if how == "with input" or "_rest-" not in wheel.name:
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(site)
    return sites


def work(library: str) -> None:
    """Run all collectives, and print their digests: the program of the child processes."""
    nccl = Nccl(library)
    setup = {"gpus": len(nccl.gpus), "packs": loaded_packs(), "seconds": nccl.seconds}
    results = {} if "--setup" in sys.argv else nccl.everything()
    print(json.dumps({"setup": setup, "results": results}), flush=True)  # noqa: T201


def run(site: Path, setting: dict[str, str], *words: str) -> dict[str, Any]:
    (library,) = site.rglob("libnccl.so.*[0-9]")
    # Multicast needs rights that a container rarely has.
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "NCCL_DEBUG": "WARN", **setting}
    command = [sys.executable, __file__, "--library", str(library), *words]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return {"setup": {"died": "timeout"}, "results": {}}
    rows = [row for row in done.stdout.splitlines() if row.startswith('{"setup"')]
    failed = {"setup": {"died": done.stdout[-500:] + done.stderr[-900:]}, "results": {}}
    return json.loads(rows[-1]) if rows else failed


def say(*words: object) -> None:
    print(*words, flush=True)  # noqa: T201 - the report


def main() -> int:
    """Compare both, and exit with 1 if a result differs or is missing."""
    if sys.argv[1] == "--library":
        work(sys.argv[2])
        return 0
    with tempfile.TemporaryDirectory() as name:
        sites = unpack(Path(sys.argv[1]), Path(name))
        failures = 0
        for setting in [SETTINGS[int(word)] for word in sys.argv[2:]] or SETTINGS:
            found = {how: run(site, setting) for how, site in sites.items()}
            before, after = (each["results"] for each in found.values())
            different = sorted(one for one in before if after.get(one) != before[one])
            failures += bool(different) or not before or len(before) != len(after)
            errors = sum(":" in str(one) for one in before.values())
            say(f"{setting or 'default'}: {len(before)} results, {errors} of them errors of NCCL,")
            say(f"  different: {different[:20]}")
            for how, each in found.items():
                say(f"  {how}: {each['setup']}")
        for how, site in sites.items():
            rounds = [run(site, {}, "--setup")["setup"].get("seconds") for _ in range(ROUNDS)]
            seconds = [one for one in rounds if isinstance(one, float)]
            say(f"{how}: set-up {median(seconds or [0.0]):.3f} s {rounds}")
    say("the same bytes" if not failures else f"{failures} settings differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
