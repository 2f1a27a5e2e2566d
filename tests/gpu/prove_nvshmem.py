"""Prove on GPUs that NVSHMEM computes the same bytes without the input of its device link.

Made on a machine with archsplit, for GPUs of one kind, so that it is small enough to copy. The
bitcode, which only a compiler reads, isn't needed:

    pip download --no-deps --dest fat nvidia-nvshmem-cu13==3.8.0
    archsplit slim fat/*.whl --keep sm_90 --keep-ptx none --out slim
    archsplit split slim/*.whl --out nvshmem && zip -d nvshmem/nvidia_nvshmem_cu13-*.whl '*.bc'

Then on a machine with two GPUs or more: ``python tests/gpu/prove_nvshmem.py nvshmem``. It needs the
driver and Python, and nothing else. All collectives, and the puts and gets on a stream, of all
types run with the pack ``rest`` and without it, in a process for each GPU.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prove_relocatable import Gpu, content, loaded_packs, say, unpack

SIZES = (1, 1000, 1 << 16)
FLOATS = {"bfloat16": "bfloat16", "half": "float16", "float": "float32", "double": "float64"}
"""NVSHMEM's names of types, and the names in `content`."""
INTEGERS = tuple(f"{sign}{bits}" for sign in ("int", "uint") for bits in (8, 16, 32, 64))
BYTES = {"bfloat16": 2, "half": 2, "float": 4, "double": 8} | {
    name: int(name[-2:].strip("t")) // 8 for name in INTEGERS
}
ARITHMETIC, BITWISE = ("sum", "prod", "min", "max"), ("and", "or", "xor")
UNIQUE_ID, ATTRIBUTES, WITH_UNIQUE_ID = 128, 144, 1 << 3
"""Sizes of ``nvshmemx_uniqueid_t`` and ``nvshmemx_init_attr_t``, and ``nvshmemx_init_attr``'s
flag."""
WORLD = 0
"""``NVSHMEM_TEAM_WORLD``."""


class Nvshmem:
    """A GPU's part, with a source and a target on the symmetric heap."""

    def __init__(self, library: str, rank: int, ranks: int, meeting: Path) -> None:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        self.ranks, self.rank = ranks, rank
        self.size = max(SIZES) * max(BYTES.values()) * ranks
        self.gpu = Gpu(driver, rank, 1)
        self.library = ctypes.CDLL(library)
        began = time.perf_counter()
        self._start(meeting)
        self.library.nvshmem_malloc.restype = ctypes.c_void_p
        self.gpu.source, self.gpu.target = (
            ctypes.c_uint64(self.library.nvshmem_malloc(ctypes.c_size_t(self.size)) or 0)
            for _ in range(2)
        )
        if not (self.gpu.source.value and self.gpu.target.value):
            raise RuntimeError("nvshmem_malloc returns NULL")
        self.gpu.size = self.size
        self.collect("float_sum_reduce", "float", 1)
        self.seconds = time.perf_counter() - began

    def _start(self, meeting: Path) -> None:
        """Start NVSHMEM with an identifier that the first rank writes to a file."""
        identifier = ctypes.create_string_buffer(UNIQUE_ID)
        ctypes.c_int.from_buffer(identifier).value = (1 << 16) + UNIQUE_ID
        if self.rank == 0:
            self.call("nvshmemx_get_uniqueid", identifier)
            written = meeting.with_suffix(".new")
            written.write_bytes(identifier.raw)
            written.rename(meeting)
        while not meeting.exists():
            time.sleep(0.01)
        identifier = ctypes.create_string_buffer(meeting.read_bytes(), UNIQUE_ID)
        attributes = ctypes.create_string_buffer(ATTRIBUTES)
        ctypes.c_int.from_buffer(attributes).value = (1 << 16) + ATTRIBUTES
        # The identifier's arguments come after the communicator's pointer and their own version.
        for offset, size in ((16, 128), (24, 24)):
            ctypes.c_int.from_buffer(attributes, offset).value = (1 << 16) + size
        words = (self.rank, self.ranks, identifier, attributes)
        self.call("nvshmemx_set_attr_uniqueid_args", *words)
        self.call("nvshmemx_hostlib_init_attr", ctypes.c_uint(WITH_UNIQUE_ID), attributes)

    def call(self, name: str, *words: object) -> None:
        if status := getattr(self.library, name)(*words):
            raise RuntimeError(f"{name} returns {status}")

    def collect(self, name: str, kind: str, count: int, *last: object) -> str:
        """Run an operation on all GPUs, and return the digest of this GPU's result."""
        size = count * self.ranks * BYTES[kind]
        self.gpu.write(content(FLOATS.get(kind, "int8"), size, self.rank)[:size])
        self.library.nvshmemx_barrier_all_on_stream(None)
        team = () if "put" in name or "get" in name else (WORLD,)
        function = getattr(self.library, f"nvshmemx_{name}_on_stream")
        function.restype = ctypes.c_int if team else None
        count_word = ctypes.c_size_t(count)
        status = function(*team, self.gpu.target, self.gpu.source, count_word, *last, None)
        self.library.nvshmemx_barrier_all_on_stream(None)
        found = self.gpu.digest(size)
        return f"error: {name} returns {status}" if team and status else found

    def everything(self) -> dict[str, str]:
        """Return the results of all operations."""
        results = {}
        peer = ctypes.c_int((self.rank + 1) % self.ranks)
        for kind in BYTES:
            operations: dict[str, tuple[object, ...]] = {"fcollect": (), "alltoall": ()}
            operations |= {"broadcast": (ctypes.c_int(self.ranks - 1),)}
            operations |= dict.fromkeys(("put", "put_nbi", "get", "get_nbi"), (peer,))
            for how in (*ARITHMETIC, *(() if kind in FLOATS else BITWISE)):
                operations |= {f"{how}_reduce": (), f"{how}_reducescatter": ()}
            for name, last in operations.items():
                for count in SIZES:
                    found = self.collect(f"{kind}_{name}", kind, count, *last)
                    results[f"{name} {kind} {count}"] = found
        return results


def work(library: str, rank: int, ranks: int, meeting: Path) -> None:
    """Run all operations, and print their digests: the program of the child processes."""
    nvshmem = Nvshmem(library, rank, ranks, meeting)
    results = nvshmem.everything()
    setup = {"packs": loaded_packs(), "seconds": nvshmem.seconds}
    print(json.dumps({"setup": setup, "results": results}), flush=True)  # noqa: T201
    # Not finalized: what is measured is done, and the driver frees all.
    os._exit(0)


def run(site: Path, ranks: int) -> list[dict[str, Any]]:
    """Return the setup and the results of each rank; no results if one failed."""
    (library,) = site.rglob("libnvshmem_host.so.*[0-9]")
    folder = str(library.parent)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": folder,
        # Multicast needs rights that a container rarely has; all GPUs are in one machine.
        "NVSHMEM_DISABLE_NVLS": "1",
        "NVSHMEM_REMOTE_TRANSPORT": "none",
        "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME": "lo",
    }
    meeting = site / "identifier"
    meeting.unlink(missing_ok=True)
    words = [sys.executable, __file__, "--library", str(library)]
    children = [
        subprocess.Popen(
            [*words, str(rank), str(ranks), str(meeting)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(ranks)
    ]
    found = []
    for child in children:
        try:
            output, _ = child.communicate(timeout=100)
        except subprocess.TimeoutExpired:
            child.kill()
            output, _ = child.communicate()
        rows = [row for row in output.splitlines() if row.startswith('{"setup"')]
        failed = {"setup": {"died": output[-1200:]}, "results": {}}
        found.append(json.loads(rows[-1]) if rows else failed)
    return found


def main() -> int:
    """Compare both, and exit with 1 if a result differs or is missing."""
    if sys.argv[1] == "--library":
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
    driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        sites = unpack(Path(sys.argv[1]), Path(name))
        found = {how: run(site, count.value) for how, site in sites.items()}
    for rank, (before, after) in enumerate(zip(*found.values(), strict=True)):
        old, new = before["results"], after["results"]
        different = sorted(one for one in old if new.get(one) != old[one])
        errors = sum("error" in one for one in old.values())
        failures += bool(different) or not old or len(old) != len(new)
        say(f"GPU {rank}: {len(old)} results, {len(set(old.values()))} different digests,")
        say(f"  errors of NVSHMEM: {errors}; different: {different[:20]}")
        say(f"  with input: {before['setup']}", f"\n  without: {after['setup']}")
    say("the same bytes" if not failures else f"{failures} GPUs differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
