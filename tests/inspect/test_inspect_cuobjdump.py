"""Inspect against cuobjdump on wheels of the index, entry by entry and byte by byte."""

from __future__ import annotations

import hashlib
import re
import subprocess
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from archsplit.devicecode.decompression import decompress
from archsplit.devicecode.model import Place
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import EntryKind, host_containers
from archsplit.formats.reader import Window, open_file
from archsplit.inspect.inspect import InspectRequest, read_inventory
from index_wheels import index_wheel, program

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.model import File

pytestmark = pytest.mark.download
CUDA_13 = "nvidia-cuda-cuobjdump"
CUDA_12 = "triton==3.1.0"  # it ships cuobjdump 12.4, which knows what 13 has forgotten
WHEELS = [
    ("xgboost==3.2.0", CUDA_13),
    ("jax-cuda12-plugin==0.10.2", CUDA_13),
    ("jax-cuda13-plugin==0.10.2", CUDA_13),
    ("xformers==0.0.35", CUDA_13),
    ("faiss-gpu-cu12==1.14.1.post1", CUDA_12),
    ("cupy-cuda12x==14.2.0", CUDA_13),
]
ENTRY = re.compile(r"^Fatbin (\w+) code:\n=+\narch = (\w+)$", re.MULTILINE)
WORDS = {"SASS": "elf", "PTX": "ptx"}


def cuobjdump(downloads: Path, requirement: str, to: Path) -> Path:
    return program(downloads, requirement, "bin/cuobjdump", to)


def libraries(wheel: Path, to: Path) -> Iterator[tuple[File, Path]]:
    """Yield every library of a wheel with its inspected file."""
    with zipfile.ZipFile(wheel) as archive:
        for file in read_inventory(InspectRequest(subject=str(wheel))).files:
            yield file, Path(archive.extract(file.path, to))


@pytest.mark.parametrize(("requirement", "second"), WHEELS)
def test_every_entry_as_cuobjdump_has_it(
    downloads: Path, requirement: str, second: str, tmp_path: Path
) -> None:
    program = cuobjdump(downloads, second, tmp_path / "cuobjdump")
    compared = 0
    for file, library in libraries(index_wheel(downloads, requirement), tmp_path / "wheel"):
        done = subprocess.run(
            [program, "-all", library], capture_output=True, text=True, check=False
        )
        theirs = Counter(
            (kind, arch if kind == "elf" else arch.replace("sm_", "compute_"))
            for kind, arch in ENTRY.findall(done.stdout)
        )
        ours = Counter(
            (WORDS[image.kind_name], image.target_name)
            for unit in file.units
            if unit.place is not Place.OUTSIDE
            for image in unit.images
        )
        assert ours == theirs, (file.path, done.stderr)
        assert file.problem is None
        compared += ours.total()
    assert compared > 0


def cubins(library: Path) -> Counter[str]:
    """Count the SHA-256 of every decompressed cubin in a library."""
    found: Counter[str] = Counter()
    for _, container in host_containers(Elf(open_file(library))):
        for entry in container.entries():
            if entry.kind is EntryKind.CUBIN:
                content = decompress(entry, container.payload(entry))
                found[hashlib.sha256(trimmed(content)).hexdigest()] += 1
    return found


def trimmed(cubin: bytes) -> bytes:
    """Remove the padding of an uncompressed entry, which cuobjdump leaves out."""
    elf = Elf(Window(cubin, source="cubin"))
    header = elf.header
    tables = (
        header.sections_offset + header.section_count * header.section_size,
        header.segments_offset + header.segment_count * header.segment_size,
    )
    rest = cubin[max(tables) :]
    return cubin[: max(tables)] if not any(rest) and len(rest) < 8 else cubin


@pytest.mark.parametrize(("requirement", "second"), WHEELS)
def test_cubins_equal_those_extracted_by_cuobjdump(
    downloads: Path, requirement: str, second: str, tmp_path: Path
) -> None:
    program = cuobjdump(downloads, second, tmp_path / "cuobjdump")
    compared = 0
    for file, library in libraries(index_wheel(downloads, requirement), tmp_path / "wheel"):
        if not file.units:
            continue
        extracted = tmp_path / "extracted"
        extracted.mkdir()
        argv = (program, "-all", "-xelf", "all", library)
        subprocess.run(argv, cwd=extracted, check=True, capture_output=True)
        theirs: Counter[str] = Counter()
        for path in extracted.iterdir():
            theirs[hashlib.sha256(trimmed(path.read_bytes())).hexdigest()] += 1
            path.unlink()
        extracted.rmdir()
        # Two entries of one container and target overwrite each other's file, so sets.
        assert set(cubins(library)) == set(theirs), file.path
        compared += len(theirs)
    assert compared > 0
