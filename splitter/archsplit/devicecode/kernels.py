"""Kernels of machine code: names, sizes, and calls of CUDA's device runtime.

In go images; out come kernels by target and name. Machine code has to be decompressed for that, up
to a limit for each file.

Names are mangled by the Itanium C++ ABI (https://itanium-cxx-abi.github.io/cxx-abi/abi.html): each
identifier comes after its length, which is enough to read all but the arguments. Arguments need a
demangler: LLVM's, in pycxxfilt, if that is installed.
"""

from __future__ import annotations

import importlib
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompression import MAX_UNPACK_RATIO, decompress, image_content
from archsplit.devicecode.model import KernelRow, Place
from archsplit.devicecode.select import is_ptx
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import RELOCATABLE, Container, host_containers, read_entry
from archsplit.formats.mapped import release_pages
from archsplit.formats.reader import Window, open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.devicecode.model import Image, Unit

    Demangler = Callable[[str], str | None]

FREE_UNPACKED, FREE_IMAGE = 1 << 28, 1 << 26
"""Decompressed bytes that all images, and one, of any file may have; see `MAX_UNPACK_RATIO`."""

# A length counts only if no digit stands before it: in "12cub" it is 12, not 2.
_IDENTIFIER = re.compile(r"(?<![0-9])([1-9][0-9]{0,3})(?=_GLOBAL__N_|(?:CUB|THRUST|_V)_[0-9])")
# Hashes have eight hexadecimal digits; the decimal numbers beside them differ between builds too.
_HASH = re.compile(r"_[0-9a-f]{8}(?=_|$)|_[0-9]+(?=_|$)")

_LIBRARY = re.compile(r"(CUB|THRUST|_V)_[0-9]\w*")
"""CUB's own namespace, with its version and the list of targets; ``_V`` since CCCL 3.2."""

_NESTED = re.compile(r"_ZN?[KVr]*")
_LENGTH = re.compile(r"[1-9][0-9]{0,3}")
_EXTERNAL = re.compile(rb"\.extern\s+\.func\s*(?:\([^)]*\)\s*)?((?:__)?cuda\w+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Kernels of a file, and the reason why they may be incomplete, or None."""

    rows: tuple[KernelRow, ...] = field(repr=False)
    problem: str | None


def read_kernels(window: Window, units: Iterable[Unit]) -> KernelTable:
    """Read the kernels of machine code that a device may take, by target and name.

    For a file with nothing but input of a device link (``-rdc=true``), these are that code's
    kernels.

    Args:
        window: the file.
        units: the file's units; all images together are decompressed up to a limit.
    """
    # The limit is for the file: many small images could expand as far as a large one.
    remaining = FREE_UNPACKED + MAX_UNPACK_RATIO * len(window)
    sizes: Counter[tuple[Target, str]] = Counter()
    counts: Counter[tuple[Target, str]] = Counter()
    faults: list[str] = []
    for target, image in _cubin_images(tuple(units)):
        try:
            code, unpacked = _read_cubin(window, image, remaining)
            remaining -= unpacked
            kernels = tuple(Cubin(code).kernels())
        except BinaryFormatError as error:
            faults.append(str(error))
            continue
        for kernel in kernels:
            # A template's kernel is in every translation unit that uses it: its copies are added
            # up.
            sizes[target, kernel.name] += kernel.size
            counts[target, kernel.name] += 1
        release_pages(window)
    rows = tuple(
        KernelRow(target=str(target), name=name, count=counts[target, name], code_bytes=size)
        for (target, name), size in sorted(sizes.items())
    )
    problem = f"images not read for kernels: {len(faults)}; {faults[0]}" if faults else None
    return KernelTable(rows=rows, problem=problem)


def _cubin_images(units: tuple[Unit, ...]) -> Iterator[tuple[Target, Image]]:
    places = {unit.place for unit in units}
    # In a linked library, relocatable code is a leftover.
    place = Place.EXECUTABLE if Place.EXECUTABLE in places else Place.RELOCATABLE
    for unit in units:
        for image in unit.images:
            target = image.target
            if unit.place is place and target is not None and target.kind is CodeKind.SASS:
                yield target, image


def _read_cubin(window: Window, image: Image, remaining: int) -> tuple[Window, int]:
    """Return a cubin and the bytes that were decompressed for it, no more than ``remaining``."""
    if image.is_bare:
        # Read in the file, without a copy.
        return window.at(image.offset, image.file_bytes, "image"), 0
    container = Container(offset=window.start, body=window)
    start = image.offset if image.frame is None else image.frame
    entry = read_entry(window, start - window.start)
    # The header's size is checked before memory is allocated.
    most = min(remaining, max(FREE_IMAGE, MAX_UNPACK_RATIO * entry.payload_size))
    if entry.uncompressed_size > most:
        size = str(entry.uncompressed_size)
        raise container.payload(entry).fault(0, "unpacked size", size, f"up to {most} left")
    inner = (one for one in container.inner_entries(entry) if one.offset == image.offset)
    content = image_content(container, next(inner, entry))
    source = f"{window.source}, image at {image.offset:#x}"
    return Window(content, source=source), entry.raw_size


def stable_name(name: str) -> str:
    """Return a kernel's name without the parts that differ between two builds of a source.

    nvcc puts hashes of the path and the content into the names of unnamed namespaces, and CUB puts
    its version and the list of targets into its own namespace's name.
    """
    pieces = []
    end = 0
    for match in _IDENTIFIER.finditer(name):
        after = match.end() + int(match[1])
        # A length may point beyond the name, or into an identifier that was replaced.
        if match.start() >= end and after <= len(name):
            stable = _strip_hashes(name[match.end() : after])
            pieces += [name[end : match.start()], f"{len(stable)}{stable}"]
            end = after
    return "".join((*pieces, name[end:]))


@cache
def find_demangler() -> Demangler | None:
    """Return LLVM's demangler, or None if it isn't installed.

    The demangler returns None for a name that is not mangled, and raises ValueError for a name that
    is mangled wrongly.
    """
    try:
        # Optional, because only names in reports depend on it.
        demangle: Demangler = importlib.import_module("pycxxfilt").itanium_demangle
    except ImportError:
        return None
    return demangle


def readable_name(name: str, demangle: Demangler | None = None) -> str:
    """Return a kernel's name as in the source: ``cub::DeviceReduceKernel<float>(float*)``.

    Without a demangler the arguments, which tell templates apart, stay mangled behind the name.
    """
    try:
        whole = None if demangle is None else demangle(name)
    # A wrongly mangled name is shown as far as it can be read.
    except ValueError:
        whole = None
    return _split_nested(name) if whole is None else whole.removeprefix("void ")


def template_name(name: str) -> str:
    """Return a kernel's name without arguments: ``cub::DeviceReduceKernel``."""
    return _split_nested(name).partition(" ")[0]


def _split_nested(name: str) -> str:
    match = _NESTED.match(name)
    if match is None:
        return name
    parts, at = [], match.end()
    while length := _LENGTH.match(name, at):
        start = length.end()
        at = start + int(length[0])
        parts.append(name[start:at])
    if not parts or at > len(name):
        return name
    # The hash in the name of an unnamed namespace means nothing to a reader.
    words = ["{unnamed}" if part.startswith("_GLOBAL__N_") else part for part in parts]
    return f"{'::'.join(words)} {name[at:]}".rstrip()


def _strip_hashes(identifier: str) -> str:
    library = _LIBRARY.fullmatch(identifier)
    return library[1] if library else _HASH.sub("", identifier)


def device_runtime_calls(path: Path) -> frozenset[str]:
    """Return the device runtime's functions that a library's relocatable PTX calls.

    Kernel launches on the device are such calls.

    Raises:
        InputError: the file can't be read.
        BinaryFormatError: it is not an ELF file, or it is damaged.
    """
    elf = Elf(open_file(path))
    return frozenset(
        name.decode() for text in _relocatable_ptx(elf) for name in _EXTERNAL.findall(text)
    )


def _relocatable_ptx(elf: Elf) -> Iterator[bytes]:
    for section, container in host_containers(elf):
        if section.name == RELOCATABLE:
            for entry in container.entries():
                if is_ptx(entry):
                    yield decompress(entry, container.payload(entry))
