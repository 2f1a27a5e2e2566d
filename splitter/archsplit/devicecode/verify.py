"""The check of a rewritten file against its plan and the old file.

In go a plan and the new file; out come the images in it, or all findings. The new file is read by
the readers alone, which share no code with the writers: its containers must hold exactly the images
that were to stay, byte for byte; pointers must lead to the same images as before; and every section
without a reason to change must be equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from archsplit.devicecode.compression import decompress
from archsplit.devicecode.file_plan import container_holders
from archsplit.devicecode.scan import Form, release_pages
from archsplit.devicecode.unregistered import planned_bytes
from archsplit.errors import VerifyError
from archsplit.formats.elf import SectionType
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE
from archsplit.formats.fatbin_wrappers import read_wrappers
from archsplit.system.parallel import are_equal
from archsplit.system.units import BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archsplit.devicecode.file_plan import ContainerHolder, FilePlan
    from archsplit.devicecode.unregistered import UnregisteredImage
    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.reader import Window

_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM
_WITH_POINTERS = {SectionType.SYMBOLS, SectionType.RELA, _DYNAMIC_SYMBOLS}
# The sections with wrappers. `.data.rel.ro` begins like this too: it has pointers.
_DATA = (".data", ".nvFatBinSegment")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptImage:
    """An image that stayed, with its new place and the SHA-256 of its payload."""

    kind: str
    target: str | None
    container: int
    offset: int
    sha256: str


def verify_kept_images(plan: FilePlan, new: Window) -> tuple[KeptImage, ...]:
    """Compare a written file with its plan.

    Returns:
        Every image in the file.

    Raises:
        VerifyError: it is not as planned; the message lists all findings.
        BinaryFormatError: it can't be read.
    """
    old_parts, new_parts = list(container_holders(plan.window)), list(container_holders(new))
    images: list[KeptImage] = []
    findings = (
        []
        # Parts are an archive's members; any other file has one.
        if len(old_parts) == len(new_parts)
        else [f"{len(new_parts)} parts, expected {len(old_parts)}"]
    )
    findings += _image_findings(plan, new_parts, images)
    if plan.form is Form.CUBIN and len(new) != plan.size:
        findings.append(f"{len(new)} bytes, expected {plan.size}")
    for before, after in zip(old_parts, new_parts, strict=False):
        if before.elf is not None and after.elf is not None:
            findings += _wrapper_findings(before.elf, after.elf)
            findings += _section_findings(before.elf, after.elf, plan.zeroed)
    if findings:
        raise VerifyError("\n  ".join([f"{new.source} is not as planned:", *findings]))
    return tuple(images)


def _image_findings(
    plan: FilePlan, parts: list[ContainerHolder], images: list[KeptImage]
) -> Iterator[str]:
    containers = [container for part in parts for _, container in part.containers()]
    for number, (planned, actual) in enumerate(zip_longest(plan.containers, containers)):
        if planned is None or actual is None:
            yield f"{len(containers)} containers, expected {len(plan.containers)}"
            return
        entries = tuple(actual.entries())
        if list(map(_identity, planned.kept)) != list(map(_identity, entries)):
            yield f"container {number}: its images are not the ones to keep"
            continue
        for old, new in zip(planned.kept, entries, strict=True):
            if not _is_same_image(planned.container, old, actual, new):
                yield f"container {number}: the image at {new.offset:#x} differs from the old one"
            images.append(_kept_image(number, actual, new))
        release_pages(planned.container.body)
        release_pages(actual.body)


def _identity(entry: FatbinEntry) -> tuple[object, ...]:
    # Sizes and flags are left out: compressing an image changes them.
    return (entry.kind_number, entry.arch, entry.suffix, entry.version)


def _is_same_image(before: Container, old: FatbinEntry, after: Container, new: FatbinEntry) -> bool:
    old_payload, new_payload = before.payload(old), after.payload(new)
    # Images that were compressed anew are equal when decompressed.
    if old.compression is new.compression:
        return are_equal(old_payload.data, new_payload.data)
    return decompress(old, old_payload) == decompress(new, new_payload)


def _kept_image(number: int, container: Container, entry: FatbinEntry) -> KeptImage:
    return KeptImage(
        kind=entry.kind_name,
        target=None if entry.target is None else str(entry.target),
        container=number,
        offset=entry.offset,
        sha256=hashlib.sha256(container.payload(entry).data).hexdigest(),
    )


def _wrapper_findings(before: Elf, after: Elf) -> Iterator[str]:
    """Compare the containers that wrappers point at, by the containers' order."""
    if _container_numbers(before) != _container_numbers(after):
        yield "wrappers point at other containers than before"


def _container_numbers(elf: Elf) -> list[int | None]:
    containers = [wrapper.container for wrapper in read_wrappers(elf)]
    starts = sorted({one.offset for one in containers if one is not None})
    # Containers move, so their numbers are compared and not their offsets.
    return [None if one is None else starts.index(one.offset) for one in containers]


def _section_findings(
    before: Elf, after: Elf, zeroed: tuple[UnregisteredImage, ...]
) -> Iterator[str]:
    for old, new in zip_longest(before.sections(), after.sections()):
        if old is None or new is None:
            yield "the number of sections differs"
            return
        # Offsets may differ, addresses may not: code has them in its instructions.
        if (old.name, old.type, old.address) != (new.name, new.type, new.address):
            yield f"section {old.name} has another name, type or address"
        # Pointers, symbols and containers change; all other sections stay equal.
        elif not _may_change(old) and not _has_planned_bytes(
            before.content(old), after.content(new), zeroed
        ):
            yield f"section {old.name} has other bytes"
        release_pages(before.window)
        release_pages(after.window)


def _may_change(section: Section) -> bool:
    return (
        section.name in {EXECUTABLE, RELOCATABLE}
        or section.name.startswith(_DATA)
        or section.type in _WITH_POINTERS
    )


def _has_planned_bytes(old: Window, new: Window, zeroed: tuple[UnregisteredImage, ...]) -> bool:
    if len(old) != len(new):
        return False
    end = old.start + len(old)
    within = [image for image in zeroed if old.start <= image.start < end]
    # In blocks: comparing two views at once would map both sections whole.
    for at in range(0, len(old), BLOCK):
        size = min(BLOCK, len(old) - at)
        start = old.start + at
        overwritten = [one for one in within if one.start < start + size and start < one.end]
        planned = (
            memoryview(planned_bytes(old, start, size, overwritten))
            if overwritten
            else old.data[at : at + size]
        )
        if not are_equal(planned, new.data[at : at + size]):
            return False
    return True
