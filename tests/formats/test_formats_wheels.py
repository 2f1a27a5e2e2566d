"""The readers against cuobjdump, entry by entry, on libraries of the index."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import Compression, EntryKind, host_containers, read_wrappers
from archsplit.formats.reader import open_file
from index_wheels import index_wheel, members, program

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.formats.reader import Window

pytestmark = pytest.mark.download
CUDA_13 = "nvidia-cuda-cuobjdump"
CUDA_12 = "triton==3.1.0"  # it ships cuobjdump 12.4, which knows what 13 has forgotten
AARCH64 = ("--platform=manylinux_2_24_aarch64",)
ENTRY = re.compile(r"^Fatbin (\w+) code:\n=+\narch = sm_(\w+)$", re.MULTILINE)


def cuobjdump(downloads: Path, requirement: str, to: Path) -> Path:
    return program(downloads, requirement, "bin/cuobjdump", to)


def counts(library: Path) -> Counter[tuple[str, str]]:
    """Return the number of entries by kind and target, as cuobjdump prints them."""
    found: Counter[tuple[str, str]] = Counter()
    for _, container in host_containers(Elf(open_file(library))):
        for entry in container.entries():
            word = {EntryKind.PTX: "ptx", EntryKind.CUBIN: "elf"}[entry.kind or EntryKind.INDEX]
            found[word, f"{entry.arch}{entry.suffix}"] += 1
    return found


def payloads(library: Path) -> Iterator[tuple[FatbinEntry, Window]]:
    for _, container in host_containers(Elf(open_file(library))):
        for entry in container.entries():
            yield entry, container.payload(entry)


@pytest.mark.parametrize(
    ("requirement", "second"),
    [
        ("bitsandbytes==0.50.2", CUDA_12),
        ("xgboost==3.2.0", CUDA_13),
        ("jax-cuda12-plugin==0.10.2", CUDA_13),
        ("jax-cuda13-plugin==0.10.2", CUDA_13),
        ("xformers==0.0.35", CUDA_13),
        ("faiss-gpu-cu12==1.14.1.post1", CUDA_12),
        ("cupy-cuda12x==14.2.0", CUDA_13),
    ],
)
def test_every_entry_as_cuobjdump_has_it(
    downloads: Path, requirement: str, second: str, tmp_path: Path
) -> None:
    program = cuobjdump(downloads, second, tmp_path / "cuobjdump")
    compared = 0
    for library in members(index_wheel(downloads, requirement), ".so", tmp_path / "wheel"):
        done = subprocess.run(
            [program, "-all", library], capture_output=True, text=True, check=False
        )
        found = counts(library)
        assert found == Counter(ENTRY.findall(done.stdout)), f"{library}\n{done.stderr}"
        compared += found.total()
    assert compared > 0


@pytest.mark.parametrize(
    ("requirement", "platform"),
    [
        ("bitsandbytes==0.50.2", ()),
        ("bitsandbytes==0.50.2", AARCH64),
        ("xgboost==3.2.0", ()),
        ("faiss-gpu-cu12==1.14.1.post1", ()),
    ],
)
def test_every_wrapper_has_a_container_and_every_container_a_wrapper(
    downloads: Path, requirement: str, platform: tuple[str, ...], tmp_path: Path
) -> None:
    wrapped = 0
    for library in members(index_wheel(downloads, requirement, *platform), ".so", tmp_path):
        elf = Elf(open_file(library))
        wrappers = list(read_wrappers(elf))
        reached = [wrapper.container.offset for wrapper in wrappers if wrapper.container]
        assert sorted(reached) == [container.offset for _, container in host_containers(elf)]
        wrapped += len(wrappers)
    assert wrapped > 0


def test_cubins_have_the_targets_of_their_entries(downloads: Path, tmp_path: Path) -> None:
    read = 0
    for library in members(index_wheel(downloads, "bitsandbytes==0.50.2"), ".so", tmp_path):
        for entry, payload in payloads(library):
            if entry.kind is EntryKind.CUBIN and entry.compression is Compression.NONE:
                cubin = Cubin(payload)
                assert cubin.capability.sm_number == entry.arch
                assert sum(kernel.size for kernel in cubin.kernels()) <= len(payload)
                read += 1
    assert read > 0


def test_cubins_unpacked_by_cuobjdump_are_counted_as_in_the_library(
    downloads: Path, tmp_path: Path
) -> None:
    program = cuobjdump(downloads, CUDA_13, tmp_path / "cuobjdump")
    (library,) = members(index_wheel(downloads, "xformers==0.0.35"), "_C.so", tmp_path / "wheel")
    (tmp_path / "cubins").mkdir()
    subprocess.run([program, "-all", "-xelf", "all", library], cwd=tmp_path / "cubins", check=True)
    read: Counter[tuple[str, str]] = Counter()
    for path in (tmp_path / "cubins").iterdir():
        cubin = Cubin(open_file(path))
        assert f".sm_{cubin.capability.sm_number}" in path.name
        read["elf", str(cubin.capability.sm_number)] += 1
    expected: Counter[tuple[str, str]] = Counter()
    for (kind, target), count in counts(library).items():
        if kind == "elf":
            expected[kind, target.rstrip("af")] += count
    assert read == expected
