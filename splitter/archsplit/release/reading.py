"""The kernels of a folder's wheels: of plugins with a library each, or of a split's packs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_for
from archsplit.arch.target import Capability
from archsplit.devicecode.partition import REST
from archsplit.devicecode.scan import release_pages
from archsplit.formats.elf import Elf
from archsplit.formats.fatbin import containers_of
from archsplit.formats.mapped import open_file
from archsplit.release.kernel_coverage import KernelCoverage, Reader
from archsplit.release.split_read import read_split
from archsplit.release.wheels import read_wheels

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from archsplit.formats.device_pack import PackImage
    from archsplit.formats.reader import Window
    from archsplit.release.kernel_coverage import Names
    from archsplit.release.split_read import SplitCore, SplitPack
    from archsplit.wheels.reader import Wheel

_PLUGIN = re.compile(r"[^/]+_plugins/cuda/[^/]+/[^/]+\.so[^/]*")

_Key = tuple[int, int, int]


def plugin_kernels(folder: Path, scratch: Path) -> KernelCoverage:
    """The kernels of each plugin's library; wheels that can't be read are left to others."""
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
    """The kernels that GPUs find in their packs, container by container, as they choose.

    Raises:
        ArchsplitError: a wheel can't be read.
    """
    core, packs = read_split(folder, scratch)
    reader = Reader()
    found: dict[str, Names] = {}
    for names, capabilities in _groups(core).items():
        images = _images(packs, names)
        wheels = ", ".join(pack.path.name for pack in packs if pack.name in names)
        same: dict[Names, list[str]] = {}
        for capability in capabilities:
            taken = _taken(core, images, Capability.parse(capability))
            kernels = [reader.image(window, image.digest) for window, image in taken]
            same.setdefault(frozenset().union(*kernels), []).append(capability)
        found |= {f"{wheels} (GPUs of {', '.join(gpus)})": each for each, gpus in same.items()}
    for pack in packs:
        # No GPU of today takes all it needs from it: PTX for those to come.
        if pack.name != REST and not any(pack.name in names for names in core.needs.values()):
            kernels = [
                reader.image(pack.pack.content(one), one.digest) for _, one in pack.pack.images()
            ]
            found[pack.path.name] = frozenset().union(*kernels)
    return KernelCoverage(found=found, unread=tuple(reader.unread))


def _in_library(window: Window, reader: Reader) -> Names:
    kernels = [
        reader.entry(window, entry)
        for _, container in containers_of(Elf(window))
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
    packs: tuple[SplitPack, ...], names: tuple[str, ...]
) -> Mapping[_Key, tuple[Window, PackImage]]:
    """The images of some packs; of those that are not here, none."""
    return {
        key: (pack.pack.content(image), image)
        for pack in packs
        if pack.name in names
        for key, image in pack.pack.images()
    }


def _taken(
    core: SplitCore, images: Mapping[_Key, tuple[Window, PackImage]], capability: Capability
) -> list[tuple[Window, PackImage]]:
    """What a GPU takes of each container."""
    containers: dict[tuple[int, int], list[tuple[_Key, PackImage]]] = {}
    for key, image in core.table.images():
        containers.setdefault(key[:2], []).append((key, image))
    taken = []
    for listed in containers.values():
        best = best_for(capability, {image.target for _, image in listed})
        taken += [images[key] for key, image in listed if image.target == best and key in images]
    return taken
