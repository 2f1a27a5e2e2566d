"""A planned rewrite of one file: effect on GPUs, writing a copy, reading it back.

`coverage_changes` gives for each capability how many containers serve it and how, before and after,
and two more checks refuse a harmful selection. `check_plan` reads the new file only by the
readers, which share no code with the writers: its containers must hold exactly the images that were
to stay, byte for byte; pointers must lead to the same images as before; and every section without a
reason to change must be equal.
"""

from __future__ import annotations

import bisect
import os
import shlex
from collections import Counter
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING

from archsplit.arch.compat import GPU_BY_CAPABILITY, best_target, can_run_on
from archsplit.arch.target import CodeKind
from archsplit.devicecode.decompression import image_content
from archsplit.devicecode.edits import CopiedBytes, NewBytes, ZeroBytes
from archsplit.devicecode.file_plan import container_holders, is_stub
from archsplit.devicecode.linker_view import linker_findings, planned_words
from archsplit.devicecode.model import Place
from archsplit.devicecode.select import Coverage, code_targets, container_codes, missing_text
from archsplit.errors import InputError, TargetError, VerifyError
from archsplit.formats.fatbin import EXECUTABLE, RELOCATABLE, read_wrappers
from archsplit.formats.mapped import release_pages
from archsplit.system.fs import input_errors, output_errors
from archsplit.system.parallel import are_equal
from archsplit.system.units import BLOCK, count_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from archsplit.arch.target import Capability, Target
    from archsplit.devicecode.edits import EditPiece, FilteredContainer
    from archsplit.devicecode.file_plan import ContainerHolder, FilePlan
    from archsplit.devicecode.select import ContainerCode, Selection
    from archsplit.devicecode.unregistered import UnregisteredImage
    from archsplit.formats.elf import Elf, Section
    from archsplit.formats.fatbin import Container, FatbinEntry
    from archsplit.formats.reader import Window


def check_plan(plan: FilePlan, new: Window) -> None:
    """Compare a written file with its plan.

    Raises:
        VerifyError: it is not as planned; the message lists all findings.
        BinaryFormatError: it can't be read.
    """
    old_parts, new_parts = list(container_holders(plan.window)), list(container_holders(new))
    findings: list[str] = []
    # A Windows library has two sections with containers; any other file is one part.
    if len(old_parts) != len(new_parts):
        findings.append(f"parts: {len(new_parts)}, expected {len(old_parts)}")
    findings += _image_findings(plan, new_parts)
    if plan.is_emptied and len(new):
        findings.append(f"size {len(new)}, expected none")
    for before, after in zip(old_parts, new_parts, strict=False):
        if before.elf is not None and after.elf is not None:
            # Containers keep their order, so their numbers are compared.
            if _container_numbers(before.elf) != _container_numbers(after.elf):
                findings.append("wrappers point at other containers than before")
            words = planned_words(before.elf, _moves(before, after))
            findings += linker_findings(before.elf, after.elf)
            findings += _section_findings(before.elf, after.elf, plan.zeroed, words)
    if findings:
        raise VerifyError("\n  ".join([f"{new.source} is not as planned:", *findings]))


def _moves(before: ContainerHolder, after: ContainerHolder) -> dict[int, int]:
    """Return the containers' new addresses by their old ones."""
    # Containers keep their order, which `_image_findings` compares.
    return {
        old_section.address_at(old.offset): new_section.address_at(new.offset)
        for (old_section, old), (new_section, new) in zip(
            before.containers(), after.containers(), strict=False
        )
        if old_section is not None and new_section is not None
    }


def _image_findings(plan: FilePlan, parts: list[ContainerHolder]) -> Iterator[str]:
    containers = [container for part in parts for _, container in part.containers()]
    for number, (planned, actual) in enumerate(zip_longest(plan.containers, containers)):
        if planned is None or actual is None:
            yield f"containers: {len(containers)}, expected {len(plan.containers)}"
            return
        entries = tuple(actual.entries())
        if list(map(_identity, planned.kept)) != list(map(_identity, entries)):
            yield f"container {number}: its images are not the ones to keep"
            continue
        for old, new in zip(planned.kept, entries, strict=True):
            if not _is_same_image(planned.container, old, actual, new):
                yield f"container {number}: the image at {new.offset:#x} differs from the old one"
        release_pages(planned.container.body)
        release_pages(actual.body)


def _identity(entry: FatbinEntry) -> tuple[object, ...]:
    # Sizes and flags are left out: compressing an image changes them.
    return (entry.kind_number, entry.arch, entry.suffix, entry.version)


def _is_same_image(before: Container, old: FatbinEntry, after: Container, new: FatbinEntry) -> bool:
    # Images that were compressed again are equal when decompressed.
    if old.compression is new.compression and not old.frame:
        return are_equal(before.payload(old).data, after.payload(new).data)
    return image_content(before, old) == image_content(after, new)


def _container_numbers(elf: Elf) -> list[int | None]:
    """Return the number of the container that each wrapper points at."""
    containers = [wrapper.container for wrapper in read_wrappers(elf)]
    starts = sorted({one.offset for one in containers if one is not None})
    numbers = {start: number for number, start in enumerate(starts)}
    return [None if one is None else numbers[one.offset] for one in containers]


def _section_findings(
    before: Elf,
    after: Elf,
    zeroed: tuple[UnregisteredImage, ...],
    words: Mapping[int, bytes],
) -> Iterator[str]:
    offsets = sorted(words)
    for old, new in zip_longest(before.sections(), after.sections()):
        if old is None or new is None:
            yield "the number of sections differs"
            return
        # Offsets may differ, addresses may not: code has them in its instructions.
        if (old.name, old.type, old.address) != (new.name, new.type, new.address):
            yield f"section {old.name} has another name, type or address"
        # Containers change, and the known words that lead to them. All other bytes stay equal.
        elif old.name not in {EXECUTABLE, RELOCATABLE} and not _has_planned_bytes(
            before.content(old),
            after.content(new),
            zeroed,
            {at: words[at] for at in _between(offsets, old)},
        ):
            yield f"section {old.name} has other bytes"
        release_pages(before.window)
        release_pages(after.window)


def _between(offsets: list[int], section: Section) -> list[int]:
    end = section.offset + section.size
    return offsets[bisect.bisect_left(offsets, section.offset) : bisect.bisect_left(offsets, end)]


def _has_planned_bytes(
    old: Window,
    new: Window,
    zeroed: tuple[UnregisteredImage, ...],
    words: Mapping[int, bytes],
) -> bool:
    if len(old) != len(new):
        return False
    within = [image for image in zeroed if 0 <= image.start - old.start < len(old)]
    # In blocks: comparing two views at once would map both sections whole.
    for at in range(0, len(old), BLOCK):
        planned, start = old.data[at : at + BLOCK], old.start + at
        end = start + len(planned)
        overwritten = [one for one in within if one.start < end and start < one.end]
        if overwritten or words:
            block = bytearray(planned)
            for image in overwritten:
                first, last = max(image.start, start) - start, min(image.end, end) - start
                block[first:last] = bytes(last - first)
            for offset, word in words.items():
                _put_word(block, offset - start, word)
            planned = memoryview(block)
        if not are_equal(planned, new.data[at : at + BLOCK]):
            return False
    return True


def _put_word(block: bytearray, at: int, word: bytes) -> None:
    """Write the part of a word that lies in a block."""
    first, last = max(0, -at), min(len(word), len(block) - at)
    if first < last:
        block[at + first : at + last] = word[first:last]


def write_plan(source: Path, plan: FilePlan, target: Path) -> None:
    """Write the new file of a plan.

    Raises:
        InputError: the source can't be read, or became shorter since the plan was made.
        OutputError: the target can't be written.
    """
    with (
        input_errors(source),
        source.open("rb") as old,
        output_errors(target),
        target.open("wb") as new,
    ):
        for piece in plan.pieces:
            # A hole: zeros take no space on the disk if the file system has holes.
            if isinstance(piece, ZeroBytes):
                new.seek(piece.size, os.SEEK_CUR)
                continue
            for block in _blocks(old, piece, source):
                new.write(block)
        # A hole at the end is a part of the file only by its size.
        new.truncate(plan.size)


def _blocks(old: BinaryIO, piece: EditPiece, source: Path) -> Iterator[bytes]:
    if isinstance(piece, NewBytes):
        yield piece.content
        return
    if isinstance(piece, CopiedBytes):
        old.seek(piece.offset)
    # Libraries have gigabytes: no piece is held in memory as a whole.
    for start in range(0, piece.size, BLOCK):
        size = min(BLOCK, piece.size - start)
        block = old.read(size) if isinstance(piece, CopiedBytes) else bytes(size)
        # Another process may truncate the file between the plan and the copy.
        if len(block) < size:
            raise InputError(f"{source} became shorter while it was read")
        yield block


_MAX_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageChange:
    """Number of containers that serve a GPU, by coverage, before and after."""

    capability: Capability
    before: Mapping[Coverage, int] = field(repr=False)
    after: Mapping[Coverage, int] = field(repr=False)

    @property
    def stops(self) -> int:
        """Number of containers that ran on the GPU before and do not run after."""
        return self.after.get(Coverage.NONE, 0) - self.before.get(Coverage.NONE, 0)


def coverage_changes(
    files: Iterable[Collection[FilteredContainer]],
) -> tuple[CoverageChange, ...]:
    """Return the changes for each known capability; unchanged ones are left out.

    Input of a device link counts for devices that the linked code has nothing for, as in the
    driver. Stub containers that lose images don't count: nothing in them can be launched.

    Args:
        files: all containers of each.
    """
    # A library has thousands of containers and few different sets of targets.
    pairs = Counter(codes for containers in files for _, codes in _used_codes(containers))
    changes = []
    # Every published GPU, not only the selected ones: the report names all that lose code.
    for capability in GPU_BY_CAPABILITY:
        before, after = Counter[Coverage](), Counter[Coverage]()
        for codes, count in pairs.items():
            for side, code in zip((before, after), codes, strict=True):
                coverage = code.coverage(capability)
                if coverage is not None:
                    side[coverage] += count
        if before != after:
            changes.append(CoverageChange(capability=capability, before=before, after=after))
    return tuple(changes)


def _used_codes(
    containers: Collection[FilteredContainer],
) -> Iterator[tuple[FilteredContainer, tuple[ContainerCode, ContainerCode]]]:
    """Yield a file's containers that a device may miss, with their code before and after."""
    before = _codes(containers, (one.entries for one in containers))
    after = _codes(containers, (one.kept for one in containers))
    for filtered, codes in zip(containers, zip(before, after, strict=True), strict=True):
        is_cut = len(filtered.kept) < len(filtered.entries)
        if not (is_cut and filtered.is_for_driver and is_stub(filtered)):
            yield filtered, codes


def _codes(
    containers: Iterable[FilteredContainer], entries: Iterable[Iterable[FatbinEntry]]
) -> Iterator[ContainerCode]:
    return container_codes(
        [
            (
                Place.EXECUTABLE if filtered.is_for_driver else Place.RELOCATABLE,
                filtered.is_linked or bool(filtered.linked),
                _targets(filtered, some),
            )
            for filtered, some in zip(containers, entries, strict=True)
        ]
    )


def _targets(filtered: FilteredContainer, entries: Iterable[FatbinEntry]) -> frozenset[Target]:
    """Return the targets of some entries, and of the frames that stay."""
    return code_targets((*entries, *filtered.shared))


def has_code_for(selection: Selection, containers: Iterable[FilteredContainer]) -> bool:
    """Return True if anything runs on a device, or is to be kept."""
    # Code that runs through PTX or an older minor counts for a device, not for a list.
    if selection.devices:
        target_sets = {_targets(filtered, filtered.entries) for filtered in containers}
        return any(
            best_target(device, targets) for device in selection.devices for targets in target_sets
        )
    return any(_targets(filtered, filtered.kept) for filtered in containers)


def check_code_stays(
    selection: Selection, containers: Iterable[FilteredContainer], *, subject: str
) -> None:
    """Refuse a selection that matches nothing in any of the containers.

    Raises:
        TargetError: nothing runs on one of the devices, nothing serves one of the targets to keep,
            or no listed target is present.
    """
    # Libraries that choose their images themselves, as cuFFT, register nothing but stubs.
    containers = tuple(filtered for filtered in containers if not is_stub(filtered))
    hint = f"`archsplit inspect {shlex.quote(subject)}` shows its targets"
    target_sets = {_targets(filtered, filtered.entries) for filtered in containers} - {frozenset()}
    # A file without any device code is not the selection's fault.
    for device in sorted(selection.devices) if target_sets else ():
        if not any(best_target(device, targets) for targets in target_sets):
            raise TargetError(f"{subject}: nothing in it runs on {device}", hint=hint)
    found: frozenset[Target] = frozenset().union(*target_sets)
    missing = [one for one in selection.keep if not any(_serves(other, one) for other in found)]
    if found and missing:
        raise TargetError(missing_text(subject, missing, found), hint=hint)
    if target_sets and not any(_targets(filtered, filtered.kept) for filtered in containers):
        raise TargetError(f"{subject}: no device code would be kept", hint=hint)


def _serves(found: Target, wanted: Target) -> bool:
    """Return True if code serves the GPU of a listed target; PTX is served by PTX only."""
    is_kind = wanted.kind is CodeKind.SASS or found.kind is CodeKind.PTX
    return is_kind and can_run_on(found, wanted.capability)


def check_coverage_stays(
    selection: Selection, containers: Collection[FilteredContainer], *, subject: str
) -> None:
    """Refuse a list of targets that leaves a served GPU without code in a container.

    Checked are the GPUs whose own code is on the list of targets to keep; with a list of targets to
    drop, the GPUs whose own machine code stays somewhere in the file.

    Raises:
        TargetError: the message names the containers.
    """
    # A selection by devices keeps in each container the image that the device takes.
    used = () if selection.devices else tuple(_used_codes(containers))
    checked = {target.capability for target in selection.keep} or {
        target.capability
        for _, (_, after) in used
        for target in after.targets
        if after.place is Place.EXECUTABLE and target.kind is CodeKind.SASS
    }
    unserved = [
        (device, filtered.start, best_target(device, before.targets | before.input))
        for device in sorted(checked)
        for filtered, (before, after) in used
        if after.coverage(device) is Coverage.NONE and before.coverage(device) is not Coverage.NONE
    ]
    if unserved:
        places = [f"{at:#x} ({device} took {best})" for device, at, best in unserved[:_MAX_SHOWN]]
        more = f" and {len(unserved) - _MAX_SHOWN} more" if len(unserved) > _MAX_SHOWN else ""
        served = count_text(len(unserved), "container that serves", "containers that serve")
        raise TargetError(
            f"{subject}: GPUs whose code stays would find nothing in {served} them now,"
            f" at {', '.join(places)}{more}",
            hint=f"name the GPUs instead, as in --device {unserved[0][0]}: then each container"
            " keeps what they take from it",
        )
