"""Comparison of the kernels of a release: the same kernels for all GPUs.

In: a folder of wheels, built or split. Out: the kernels of each plugin, or of each group of GPUs
with the same packs, and findings for kernels that only some have. Kernel names are compared without
the parts that differ between compilations of one source.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.arch.target import Capability, CodeKind
from archsplit.devicecode.compression import decompress
from archsplit.devicecode.kernels import find_demangler, readable_name, stable_name
from archsplit.devicecode.partition import REST_PACK
from archsplit.devicecode.scan import release_pages
from archsplit.errors import BinaryFormatError
from archsplit.formats.cubin import Cubin
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import host_containers, read_entry
from archsplit.formats.reader import Window, open_file
from archsplit.release.findings import ReleaseKind, finding
from archsplit.release.split_read import read_split, read_wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.formats.device_pack import Pack, PackImage
    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.release.split_read import SplitCore, SplitPack
    from archsplit.system.finding import Finding
    from archsplit.wheels.reader import Wheel

Names = frozenset[str]

_PTX_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCoverage:
    """The kernels of each wheel or group of GPUs.

    Attributes:
        found: the kernels by file name of the wheel, for packs with the capabilities of the GPUs.
        unread: a message for each image that could not be read.
    """

    found: Mapping[str, Names] = field(repr=False)
    unread: tuple[str, ...] = ()


def kernels_of_entry(window: Window, entry: FatbinEntry) -> Names:
    """Return the kernels of an image; empty if the image is neither machine code nor PTX.

    The names lack the parts that differ between two compilations of one source.

    Args:
        window: the file with the entry.
        entry: the header of the image.

    Raises:
        BinaryFormatError: the image can't be unpacked, or is damaged.
    """
    if entry.target is None:
        return frozenset()
    payload = window.at(entry.payload_offset, entry.payload_size, "payload")
    content = decompress(entry, payload)
    if entry.target.kind is CodeKind.PTX:
        names = {match[1].decode() for match in _PTX_ENTRY.finditer(content)}
    else:
        cubin = Cubin(Window(content, source=f"{window.source}, image at {entry.offset:#x}"))
        names = {kernel.name for kernel in cubin.kernels()}
    return frozenset(map(stable_name, names))


class Reader:
    """Reader of the kernels of images; equal images are read once.

    Attributes:
        unread: a message for each image that could not be read.
    """

    def __init__(self) -> None:
        self.unread: list[str] = []
        self._known: dict[bytes, Names] = {}

    def image(self, window: Window, digest: bytes) -> Names:
        """Return the kernels of a window with a single image."""
        if digest not in self._known:
            self._known[digest] = self.entry(window, read_entry(window, 0))
        return self._known[digest]

    def entry(self, window: Window, entry: FatbinEntry) -> Names:
        """Return the kernels of an entry; empty, with a line in `unread`, if it is unreadable."""
        try:
            return kernels_of_entry(window, entry)
        except BinaryFormatError as error:
            self.unread.append(str(error))
            return frozenset()


def gaps(
    found: Mapping[str, Names], allowed: tuple[str, ...], kind: ReleaseKind = ReleaseKind.BUILT
) -> Iterator[Finding]:
    """Yield findings for wheels without kernels that other wheels have; pure.

    Args:
        found: see `KernelCoverage`.
        allowed: patterns of kernels that may be missing, mangled or readable.
    """
    everything = frozenset().union(*found.values())
    demangle = find_demangler()
    shown = {name: readable_name(name, demangle) for name in everything}
    counted = {name for name in everything if not _allowed((name, shown[name]), allowed)}
    lacking: dict[Names, list[str]] = defaultdict(list)
    for who, names in found.items():
        lacking[frozenset(counted - names)].append(who)
    for missing, people in sorted(lacking.items(), key=lambda pair: pair[1]):
        if not missing:
            continue
        others = [who for who, names in found.items() if missing & names]
        first = ", ".join(sorted(shown[name] for name in missing)[:_SHOWN])
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        text = f"no {first}{more}, which {_some(others)} has"
        yield finding(kind, "missing-kernel", ", ".join(people), text)


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (and {len(names) - 1} others)"


def _allowed(spellings: tuple[str, str], patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in spellings for pattern in patterns)


_PLUGIN = re.compile(r"[^/]+_plugins/cuda/[^/]+/[^/]+\.so[^/]*")

_Key = tuple[int, int, int]


def plugin_kernels(folder: Path, scratch: Path) -> KernelCoverage:
    """Return the kernels of each plugin's library; other checks report unreadable wheels."""
    reader = Reader()

    def kernels(wheel: Wheel) -> list[Names]:
        found = []
        for number, name in enumerate(filter(_PLUGIN.fullmatch, wheel.names)):
            library = scratch / f"{wheel.path.stem}.{number}.so"
            wheel.extract(name, library)
            found.append(_in_library(open_file(library), reader))
            library.unlink()
        return found

    found = read_wheels(folder, kernels)
    plugins = {name: frozenset().union(*each) for name, each in found.items() if each}
    return KernelCoverage(found=plugins, unread=tuple(reader.unread))


def split_kernels(folder: Path, scratch: Path) -> KernelCoverage:
    """Return the kernels that GPUs select from their packs, container by container.

    Raises:
        ArchsplitError: a wheel can't be read.
    """
    core, packs = read_split(folder, scratch)
    reader = Reader()
    found: dict[str, Names] = {}
    for names, capabilities in _groups(core).items():
        images = _images(core.table, packs, names)
        wheels = ", ".join(pack.path.name for pack in packs if pack.name in names)
        same: dict[Names, list[str]] = {}
        for capability in capabilities:
            taken = _select_images(core, images, Capability.parse(capability))
            kernels = [reader.image(window, image.digest) for window, image in taken]
            same.setdefault(frozenset().union(*kernels), []).append(capability)
        found |= {f"{wheels} (GPUs of {', '.join(gpus)})": each for each, gpus in same.items()}
    for pack in packs:
        # A pack that no known GPU needs: PTX for future GPUs.
        if pack.name != REST_PACK and not any(pack.name in names for names in core.needs.values()):
            kernels = [
                reader.image(pack.pack.content(one), one.digest) for _, one in pack.pack.images()
            ]
            found[pack.path.name] = frozenset().union(*kernels)
    return KernelCoverage(found=found, unread=tuple(reader.unread))


def _in_library(window: Window, reader: Reader) -> Names:
    kernels = [
        reader.entry(window, entry)
        for _, container in host_containers(Elf(window))
        for entry in container.entries()
    ]
    release_pages(window)
    return frozenset().union(*kernels)


def _groups(core: SplitCore) -> Mapping[tuple[str, ...], list[str]]:
    groups: dict[tuple[str, ...], list[str]] = {}
    for capability, names in core.needs.items():
        groups.setdefault(tuple(names), []).append(capability)
    return groups


def _images(
    table: Pack, packs: tuple[SplitPack, ...], names: tuple[str, ...]
) -> Mapping[_Key, tuple[Window, PackImage]]:
    """Return the images of the packs that are in the folder."""
    return {
        key: (pack.pack.content(image), image)
        for pack in packs
        if pack.name in names
        for key, image in pack.pack.images_in(table)
    }


def _select_images(
    core: SplitCore, images: Mapping[_Key, tuple[Window, PackImage]], capability: Capability
) -> list[tuple[Window, PackImage]]:
    """Return the image of each container that a GPU selects."""
    containers: dict[tuple[int, int], list[tuple[_Key, PackImage]]] = {}
    for key, image in core.table.images():
        containers.setdefault(key[:2], []).append((key, image))
    taken = []
    for listed in containers.values():
        best = best_target(capability, {image.target for _, image in listed})
        taken += [images[key] for key, image in listed if image.target == best and key in images]
    return taken
