"""Prove that the packs of a split hold what the fat wheel held: image by image, byte by byte."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitter.arch.compat import best_for
from splitter.arch.target import Capability
from splitter.binfmt.elf import Elf
from splitter.binfmt.mapped import open_file
from splitter.devicecode.scan import release
from splitter.errors import VerifyError
from splitter.splitting.library import images_of
from splitter.splitting.movable import places_of
from splitter.splitting.release import read_split
from splitter.system.files import private_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from splitter.binfmt.device_pack import PackImage
    from splitter.splitting.release import SplitCore, SplitPack

_Key = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRelease:
    """What was proven.

    Attributes:
        packs: for each wheel of a pack, how many images it has.
        images: how many the fat wheel had; ``covered`` of them are in at least one pack.
        needs: the packs that each capability needs.
    """

    package: str
    version: str
    build_id: str
    packs: Mapping[str, int]
    images: int
    covered: int
    needs: Mapping[str, tuple[str, ...]]


def verify_split(
    folder: Path,
    *,
    originals: Mapping[str, Path] | None = None,
    complete: bool = False,
    capabilities: Collection[Capability] | None = None,
) -> SplitRelease:
    """Check all wheels of a split.

    Args:
        folder: has them.
        originals: the fat libraries, by their names, to hold the table against.
        complete: every image has to be in a pack, and not just what the packs promise.
        capabilities: only these GPUs' packs have to be there.

    Raises:
        VerifyError: lists every finding; where wheels are damaged, all of these and nothing else.
        InputError: there is not one core.
    """
    with private_folder() as scratch:
        core, packs = read_split(folder, scratch)
        listed = dict(core.table.images())
        here = {pack.name: dict(pack.pack.images()) for pack in packs}
        covered = len(set(listed) & {key for images in here.values() for key in images})
        with ThreadPoolExecutor(2) as workers:
            found = workers.map(lambda pack: [*_pack_findings(core, pack, listed)], packs)
            findings = [finding for each in found for finding in each]
        needs = {
            one: names
            for one, names in core.needs.items()
            if capabilities is None or Capability.parse(one) in capabilities
        }
        findings += _service_findings(needs, listed, here)
        findings += _unknown_findings(core, capabilities or ())
        if complete and covered < len(listed):
            findings.append(f"{len(listed) - covered} of {len(listed)} images are in no pack")
        for number, library in enumerate(core.table.libraries if originals else ()):
            path = (originals or {})[library.name]
            findings += _table_findings(core, number, path)
        if findings:
            raise VerifyError("the split is not as promised:", findings=tuple(findings))
        descriptor = core.table.descriptor
        return SplitRelease(
            package=descriptor.package,
            version=descriptor.version,
            build_id=descriptor.build_id.hex(),
            packs={pack.path.name: len(here[pack.name]) for pack in packs},
            images=len(listed),
            covered=covered,
            needs=needs,
        )


def _pack_findings(
    core: SplitCore, pack: SplitPack, listed: Mapping[_Key, PackImage]
) -> Iterator[str]:
    """Whose it is, what it requires, and whether each image is the one that was split."""
    file, own, theirs = pack.path.name, pack.pack.descriptor, core.table.descriptor
    for what in ("package", "version", "build_id", "interface_hash"):
        if getattr(own, what) != getattr(theirs, what):
            yield f"{file}: its {what} is not the core's; take all wheels from one split"
            return
    if pack.name not in core.packs:
        yield f"{file}: the core knows no pack {pack.name}"
    if pack.requires != (f"{own.package}=={own.version}",):
        yield f"{file}: requires {', '.join(pack.requires) or 'nothing'}, not exactly the core"
    for key, image in pack.pack.images():
        content = pack.pack.content(image)
        row = listed.get(key)
        if row is None or (row.target, row.size) != (image.target, image.size):
            yield f"{file}: image {key} is not one of the fat wheel's"
        elif hashlib.sha256(content.data).digest() != row.digest:
            yield f"{file}: image {key} has other bytes than in the fat wheel"
        release(content)


def _service_findings(
    needs: Mapping[str, tuple[str, ...]],
    listed: Mapping[_Key, PackImage],
    here: Mapping[str, Mapping[_Key, PackImage]],
) -> Iterator[str]:
    """Each GPU has to find in its packs what it took of the fat wheel, container by container."""
    missing = sorted({name for names in needs.values() for name in names} - set(here))
    if missing:
        yield (
            f"the packs {', '.join(missing)} are not here, and the core promises them; put all"
            " wheels that split wrote into one folder"
        )
        return
    containers: dict[tuple[int, int], dict[_Key, PackImage]] = {}
    for key, image in listed.items():
        containers.setdefault(key[:2], {})[key] = image
    for capability, names in needs.items():
        found = set().union(*(here[name] for name in names))
        for place, images in containers.items():
            best = best_for(Capability.parse(capability), {one.target for one in images.values()})
            if any(one.target == best and key not in found for key, one in images.items()):
                yield f"container {place} has nothing for {capability}, which took {best} there"


def _unknown_findings(core: SplitCore, asked: Collection[Capability]) -> Iterator[str]:
    unknown = sorted({*asked} - {Capability.parse(one) for one in core.needs})
    if unknown:
        gpus = ", ".join(map(str, unknown))
        yield f"{core.path.name}: has nothing for GPUs of capability {gpus}"


def _table_findings(core: SplitCore, number: int, original: Path) -> Iterator[str]:
    """The table has to say what the fat library holds."""
    library = core.table.libraries[number]
    places = [each for each in places_of(Elf(open_file(original))) if each.wrapper is not None]
    if len(places) != len(library.containers):
        yield f"{library.name}: {len(library.containers)} containers, expected {len(places)}"
        return
    for index, (place, row) in enumerate(zip(places, library.containers, strict=True)):
        if images_of(place) != row.images:
            yield f"{library.name}: the table's container {index} is not the fat library's"
