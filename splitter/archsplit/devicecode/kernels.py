"""The kernels in machine code; for their names it has to be unpacked."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompress import EXPANSION, decompress
from archsplit.devicecode.inventory import KernelRow
from archsplit.devicecode.model import Place
from archsplit.devicecode.scan import release_pages
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.entry import read_entry
from archsplit.formats.reader import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from archsplit.arch.target import Target
    from archsplit.devicecode.model import Image, Unit

FREE_OF_FILE = 1 << 30
"""Bytes that the images of any file may have when they are unpacked; see `EXPANSION`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """The kernels of a file, and what keeps them from being all, or None."""

    rows: tuple[KernelRow, ...] = field(repr=False)
    problem: str | None


def kernels_of(window: Window, units: Iterable[Unit]) -> Kernels:
    """The kernels of the machine code that a device may take, added up by target and name.

    Of a file that holds only input for a device link (``-rdc=true``) it is that code's kernels.

    Args:
        window: the file.
        units: what was found in it; all images together are unpacked up to a limit.
    """
    left = FREE_OF_FILE + EXPANSION * len(window)
    sizes: Counter[tuple[Target, str]] = Counter()
    counts: Counter[tuple[Target, str]] = Counter()
    faults: list[str] = []
    for target, image in _machine_code(tuple(units)):
        try:
            code = _machine_code_of(window, image, left)
            kernels = tuple(Cubin(code).kernels())
        except BinaryFormatError as error:
            faults.append(str(error))
            continue
        left -= 0 if image.is_bare else len(code)
        for kernel in kernels:
            sizes[target, kernel.name] += kernel.size
            counts[target, kernel.name] += 1
        release_pages(window)
    rows = tuple(
        KernelRow(target=str(target), name=name, count=counts[target, name], code_bytes=size)
        for (target, name), size in sorted(sizes.items())
    )
    problem = f"{len(faults)} images were not read for kernels: {faults[0]}" if faults else None
    return Kernels(rows=rows, problem=problem)


def _machine_code(units: tuple[Unit, ...]) -> Iterator[tuple[Target, Image]]:
    places = {unit.place for unit in units}
    wanted = Place.EXECUTABLE if Place.EXECUTABLE in places else Place.RELOCATABLE
    for unit in units:
        for image in unit.images:
            target = image.target
            if unit.place is wanted and target is not None and target.kind is CodeKind.SASS:
                yield target, image


def _machine_code_of(window: Window, image: Image, left: int) -> Window:
    """A cubin, unpacked if it has no more than ``left`` bytes."""
    whole = window.at(image.offset, image.file_bytes, "image")
    if image.is_bare:
        return whole
    entry = read_entry(whole, 0)
    payload = whole.at(entry.payload_offset, entry.payload_size, "payload")
    if entry.uncompressed_size > left:
        raise payload.fault(0, "unpacked size", str(entry.uncompressed_size), f"up to {left} left")
    source = f"{window.source}, image at {image.offset:#x}"
    return Window(decompress(entry, payload), source=source)
