"""Settings of slimming, and the reasons why code stays.

In: the options of a user, or a file of which nothing was removed. Out: a `SlimRequest`, or a line
for each group of images with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from archsplit.devicecode.edits import copy_entry
from archsplit.devicecode.file_forms import HEAD_SIZE, Form, detect_form, window_form
from archsplit.devicecode.file_plan import EditMode, FileEdit, is_linker_input
from archsplit.devicecode.model import Place
from archsplit.devicecode.recompress import smaller_entry
from archsplit.devicecode.scan import read_contents
from archsplit.errors import BinaryFormatError
from archsplit.formats.libraries import is_signed_pe
from archsplit.formats.reader import open_file
from archsplit.system.units import count_text, short_size
from archsplit.wheels.reader import extract_member
from archsplit.wheels.record import RecordRow
from archsplit.wheels.zip_reader import read_head

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from archsplit.devicecode.model import Image
    from archsplit.devicecode.select import Selection
    from archsplit.wheels.reader import Wheel


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimRequest:
    """The settings of slimming.

    Attributes:
        source: a library, fatbin, wheel or site-packages folder.
        out: the output folder.
        recompress: the level of zstd frames for images that are LZ4 or uncompressed; None keeps
            the vendor's bytes.
        zeroes_unregistered: overwrite code that only the library finds and no GPU needs; None
            for libraries of which a GPU has proven that it changes no result.
        label: local version label of a wheel, "" for a default one; None for a build tag.
        ignore_record: accept members that don't match RECORD.
        dry_run: plan, and write nothing.
        tries_loading: load the new libraries, which runs their constructors.
        needed_folders: site-packages folders with dependencies of the libraries.
    """

    source: Path
    out: Path
    selection: Selection
    mode: EditMode = EditMode.SHRINK
    recompress: int | None = None
    zeroes_unregistered: bool | None = None
    label: str | None = None
    ignore_record: bool = False
    dry_run: bool = False
    tries_loading: bool = False
    needed_folders: tuple[Path, ...] = ()

    @property
    def file_edit(self) -> FileEdit:
        """Settings for one file."""
        # Copying is a range of the old file; compressing makes new bytes, which take memory.
        encode = partial(smaller_entry, level=self.recompress) if self.recompress else copy_entry
        return FileEdit(
            selection=self.selection,
            mode=self.mode,
            zeroes_unregistered=self.zeroes_unregistered,
            encode=encode,
        )

    @property
    def name_label(self) -> str:
        """Choice as a part of a file name."""
        words = [self.selection.label]
        words += ["zero"] if self.zeroes_unregistered else []
        return ".".join([*words, "zstd"] if self.recompress else words)

    @property
    def choice(self) -> str:
        """Selection in options of the command line."""
        selection = self.selection
        words = [f"--device {device}" for device in sorted(selection.devices)]
        for option, targets in (("--keep", selection.keep), ("--drop", selection.drop)):
            if targets:
                words.append(f"{option} {','.join(map(str, sorted(targets)))}")
        # `--keep-ptx` has no effect with `--drop`.
        if not selection.drop:
            words.append(f"--keep-ptx {selection.ptx.value}")
        if self.zeroes_unregistered is not None:
            words.append(f"--unregistered {'zero' if self.zeroes_unregistered else 'keep'}")
        if self.recompress is not None:
            words.append(f"--recompress {self.recompress}")
        return " ".join(words)


NO_CODE = "it has no device code"
SHARED_FRAMES = "in frames of several (kind 256), which are smaller whole, or which a linker reads"


def kept_code_reasons(name: str, path: Path, choice: str) -> Iterator[str]:
    """Yield the reasons why each group of images stays; none for a file without images."""
    try:
        window = open_file(path)
        units = read_contents(window).units
        form = window_form(window)
        is_signed = form is Form.PE and is_signed_pe(window)
        is_input = is_linker_input(window)
    except BinaryFormatError as error:
        # One line of the report; a member's path is in a temporary folder.
        reason = str(error).partition("\n")[0].replace(str(path), name)
        yield f"{name}: it can't be read: {reason}"
        return
    images_by_reason: defaultdict[str, list[Image]] = defaultdict(list)
    file_reason = f"kept by {choice}"
    if is_signed:
        file_reason = (
            "covered by the library's signature (Authenticode), which a change would break"
        )
    elif is_input:
        file_reason = "input of a linker, which no driver loads"
    for unit in units:
        # Only the library's own code knows the offsets of such code, so nothing may move it.
        outside = f"outside of the fatbin sections, in {unit.section}"
        reason = outside if unit.place is Place.OUTSIDE else file_reason
        for image in unit.images:
            images_by_reason[SHARED_FRAMES if image.is_share else reason].append(image)
    for reason, images in images_by_reason.items():
        # A container emptied by an earlier run has no images, and needs no reason.
        if images:
            size = short_size(sum(image.file_bytes for image in images))
            yield f"{name}: {count_text(len(images), 'image')}, {size}, {reason}"


def wheel_kept_code_reasons(wheel: Wheel, choice: str, folder: Path) -> tuple[str, ...]:
    """Return the reasons for all members of a wheel."""
    reasons: list[str] = []
    for name in wheel.names:
        if (
            detect_form(read_head(wheel.archive, wheel.archive.members[name], HEAD_SIZE))
            is not None
        ):
            # One member at a time: a wheel may have more libraries than the disk has space.
            path = folder / "library"
            extract_member(wheel.archive, RecordRow(path=name), path)
            reasons += kept_code_reasons(name, path, choice)
            path.unlink()
    return tuple(reasons) or (NO_CODE,)
