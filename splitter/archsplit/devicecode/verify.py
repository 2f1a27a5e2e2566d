"""Read a slimmed file again, and hold it against the plan and the old file.

The new file is read by the readers alone, which know nothing of how it was made: its containers
have to hold exactly the images that were to stay, byte for byte; what points at them has to point
at the same ones; and every section that had no reason to change has to be the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from archsplit.devicecode.compression import decompress
from archsplit.devicecode.file_plan import container_holders
from archsplit.devicecode.scan import release_pages
from archsplit.errors import VerifyError
from archsplit.formats.elf import SectionType
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE
from archsplit.formats.fatbin_wrappers import read_wrappers
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.file_plan import ContainerHolder, FilePlan
    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.reader import Window

_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_WITH_POINTERS = {SectionType.SYMBOLS, SectionType.RELA, _DYNAMIC_SYMBOLS}
_DATA = (".data", ".nvFatBinSegment")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptImage:
    """An image that stayed: what it is, where it is now, and the SHA-256 of its payload."""

    kind: str
    target: str | None
    container: int
    offset: int
    sha256: str


def verify_kept_images(plan: FilePlan, new: Window) -> tuple[KeptImage, ...]:
    """Check a file that was written by a plan.

    Returns:
        Every image that is in it.

    Raises:
        VerifyError: it is not what was planned; the message lists all findings.
        BinaryFormatError: it can't even be read.
    """
    old_parts, new_parts = list(container_holders(plan.window)), list(container_holders(new))
    images: list[KeptImage] = []
    findings = [] if len(old_parts) == len(new_parts) else ["other parts than before"]
    findings += _image_findings(plan, new_parts, images)
    for before, after in zip(old_parts, new_parts, strict=False):
        if before.elf is not None and after.elf is not None:
            findings += _wrapper_findings(before.elf, after.elf)
            findings += _section_findings(before.elf, after.elf)
    if findings:
        raise VerifyError("\n  ".join([f"{new.source} is not what was planned:", *findings]))
    return tuple(images)


def _image_findings(
    plan: FilePlan, parts: list[ContainerHolder], images: list[KeptImage]
) -> Iterator[str]:
    containers = [container for part in parts for _, container in part.containers()]
    for number, (planned, found) in enumerate(zip_longest(plan.containers, containers)):
        if planned is None or found is None:
            yield f"{len(containers)} containers, expected {len(plan.containers)}"
            return
        entries = tuple(found.entries())
        if list(map(_identity, planned.kept)) != list(map(_identity, entries)):
            yield f"container {number} has other images than those that were to stay"
            continue
        for old, new in zip(planned.kept, entries, strict=True):
            if not _same_image(planned.container, old, found, new):
                yield f"container {number}: the image at {new.offset:#x} is not the old one"
            images.append(_kept(number, found, new))
        release_pages(planned.container.body)
        release_pages(found.body)


def _identity(entry: FatbinEntry) -> tuple[object, ...]:
    return (entry.kind_number, entry.arch, entry.suffix, entry.version)


def _same_image(before: Container, old: FatbinEntry, after: Container, new: FatbinEntry) -> bool:
    payload, now = before.payload(old), after.payload(new)
    if old.compression is new.compression:
        return payload.data == now.data
    return decompress(old, payload) == decompress(new, now)


def _kept(number: int, container: Container, entry: FatbinEntry) -> KeptImage:
    return KeptImage(
        kind=entry.kind_name,
        target=None if entry.target is None else str(entry.target),
        container=number,
        offset=entry.offset,
        sha256=hashlib.sha256(container.payload(entry).data).hexdigest(),
    )


def _wrapper_findings(before: Elf, after: Elf) -> Iterator[str]:
    """Each wrapper has to lead to the container that it led to, by the containers' order."""
    if _leads(before) != _leads(after):
        yield "wrappers lead to other containers than before"


def _leads(elf: Elf) -> list[int | None]:
    containers = [wrapper.container for wrapper in read_wrappers(elf)]
    starts = sorted({one.offset for one in containers if one is not None})
    return [None if one is None else starts.index(one.offset) for one in containers]


def _section_findings(before: Elf, after: Elf) -> Iterator[str]:
    for old, new in zip_longest(before.sections(), after.sections()):
        if old is None or new is None:
            yield "another number of sections"
            return
        if (old.name, old.type, old.address) != (new.name, new.type, new.address):
            yield f"section {old.name} is called or placed otherwise"
        elif not _may_change(old) and not _same_bytes(before.content(old), after.content(new)):
            yield f"section {old.name} has other bytes"
        release_pages(before.window)
        release_pages(after.window)


def _may_change(section: Section) -> bool:
    return (
        section.name in {EXECUTABLE, RELOCATABLE}
        or section.name.startswith(_DATA)
        or section.type in _WITH_POINTERS
    )


def _same_bytes(one: Window, other: Window) -> bool:
    if len(one) != len(other):
        return False
    steps = range(0, len(one), BLOCK)
    return all(one.data[at : at + BLOCK] == other.data[at : at + BLOCK] for at in steps)
