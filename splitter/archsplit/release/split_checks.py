"""Checks of a split's device code: every image of the fat wheel, byte by byte.

The core's table lists all images with their digests. Each pack must hold only images of the table,
and each capability must find in its packs the image that it took of the fat wheel.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from archsplit.arch.compat import best_target
from archsplit.arch.target import Capability
from archsplit.devicecode.registered import container_images, registered_containers
from archsplit.devicecode.scan import release_pages
from archsplit.errors import VerifyError
from archsplit.formats.elf import Elf
from archsplit.formats.reader import open_file
from archsplit.release.findings import ReleaseKind, finding
from archsplit.release.list_checks import report_faults
from archsplit.release.split_read import read_split
from archsplit.release.wheel_checks import duplicate_faults, plugin_pin_faults
from archsplit.system.fs import temporary_dir
from archsplit.wheels.filename import WheelName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from archsplit.formats.device_pack import PackImage
    from archsplit.release.split_read import SplitCore, SplitPack
    from archsplit.system.finding import Finding

_Key = tuple[int, int, int]

_fault = partial(finding, ReleaseKind.SPLIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRelease:
    """Result of checking a split.

    Attributes:
        packs: for each wheel of a pack, how many images it has.
        images: their number in the fat wheel; ``covered`` of them are in at least one pack.
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
        complete: require every image in a pack, not only those that the packs serve.
        capabilities: only these GPUs' packs have to be there.

    Raises:
        VerifyError: lists every finding; where wheels are damaged, all of these and nothing else.
        InputError: a file can't be read.
    """
    with temporary_dir() as scratch:
        core, packs = read_split(folder, scratch)
        listed = dict(core.table.images())
        here = {pack.name: dict(pack.pack.images_in(core.table)) for pack in packs}
        covered = len(set(listed) & {key for images in here.values() for key in images})
        with ThreadPoolExecutor(2) as workers:
            found = workers.map(lambda pack: [*_pack_findings(core, pack, listed)], packs)
            findings = [finding for each in found for finding in each]
        needs = {
            one: names
            for one, names in core.needs.items()
            if capabilities is None or Capability.parse(one) in capabilities
        }
        findings += _service_findings(core.path.name, needs, listed, here)
        findings += _unknown_findings(core, capabilities or ())
        projects = [WheelName.parse(pack.path.name).project for pack in packs]
        findings += duplicate_faults(ReleaseKind.SPLIT, projects)
        if originals is None:
            # Split itself has just written the report that lies beside its wheels.
            wanted = None if capabilities is None else set(map(str, capabilities))
            findings += report_faults(folder, ReleaseKind.SPLIT, wanted)
        if complete and covered < len(listed):
            lacking = f"{len(listed) - covered} of {len(listed)} images are in no pack"
            findings.append(_fault("missing-image", core.path.name, lacking))
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
) -> Iterator[Finding]:
    """Check a pack's owner, its requirements and the digest of each image."""
    file, own, theirs = pack.path.name, pack.pack.descriptor, core.table.descriptor
    for what in ("package", "version", "build_id", "interface_hash"):
        if getattr(own, what) != getattr(theirs, what):
            yield _fault("foreign-build", file, f"its {what} is not the core's")
            return
    if pack.name not in core.packs:
        yield _fault("not-of-release", file, f"the core names no pack {pack.name}")
    yield from plugin_pin_faults(file, pack.metadata, core.identity, pack.name)
    for key, image in pack.pack.images_in(core.table):
        content = pack.pack.content(image)
        row = listed.get(key)
        if row is None or (row.target, row.size) != (image.target, image.size):
            yield _fault("foreign-image", file, f"image {key} is not one of the fat wheel's")
        elif hashlib.sha256(content.data).digest() != row.digest:
            found = f"image {key} has other bytes than in the fat wheel"
            yield _fault("changed-image", file, found)
        release_pages(content)


def _service_findings(
    core: str,
    needs: Mapping[str, tuple[str, ...]],
    listed: Mapping[_Key, PackImage],
    here: Mapping[str, Mapping[_Key, PackImage]],
) -> Iterator[Finding]:
    """Check that every capability finds its images in its packs, container by container."""
    missing = sorted({name for names in needs.values() for name in names} - set(here))
    if missing:
        text = f"the packs {', '.join(missing)} are not here, and the core promises them"
        yield _fault("missing-plugin", core, text)
        return
    containers: dict[tuple[int, int], dict[_Key, PackImage]] = {}
    for key, image in listed.items():
        containers.setdefault(key[:2], {})[key] = image
    for capability, names in needs.items():
        found = set().union(*(here[name] for name in names))
        for place, images in containers.items():
            best = best_target(
                Capability.parse(capability), {one.target for one in images.values()}
            )
            if any(one.target == best and key not in found for key, one in images.items()):
                text = f"container {place} has nothing for {capability}, which took {best} there"
                yield _fault("missing-image", core, text)


def _unknown_findings(core: SplitCore, asked: Collection[Capability]) -> Iterator[Finding]:
    unknown = sorted({*asked} - {Capability.parse(one) for one in core.needs})
    if unknown:
        gpus = ", ".join(map(str, unknown))
        found = f"has nothing for GPUs of capability {gpus}"
        yield _fault("unknown-target", core.path.name, found)


def _table_findings(core: SplitCore, number: int, original: Path) -> Iterator[Finding]:
    """Compare the table with the fat library."""
    library = core.table.libraries[number]
    places = [
        each for each in registered_containers(Elf(open_file(original))) if each.wrapper is not None
    ]
    if len(places) != len(library.containers):
        found = f"{len(library.containers)} containers"
        yield _fault("wrong-table", library.name, found, str(len(places)))
        return
    for index, (place, row) in enumerate(zip(places, library.containers, strict=True)):
        if container_images(place) != row.images:
            found = f"the table's container {index} is not the fat library's"
            yield _fault("wrong-table", library.name, found)
