"""What is asked for when something is slimmed, and the effects that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.devicecode.compression import compress_images
from archsplit.devicecode.edits import copy_entry
from archsplit.devicecode.file_plan import EditMode, FileEdit

if TYPE_CHECKING:
    from pathlib import Path

    from archsplit.devicecode.compression import CompressMode
    from archsplit.devicecode.select import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class SlimRequest:
    """What is asked for.

    Attributes:
        source: a library, object, static library, fatbin or wheel; never changed.
        out: the folder for the output.
        packing: how machine code that isn't packed gets packed; None leaves it.
        label: the wheel gets a local label in its version, not a build tag.
        believe_record: False takes members that aren't what RECORD has the hash of, too.
        dry_run: plan, and write nothing.
        needed_places: site-packages folders with what the libraries need when they are loaded.
        needed_wheels: wheels with the same.
    """

    source: Path
    out: Path
    selection: Selection
    mode: EditMode = EditMode.SHRINK
    packing: CompressMode | None = None
    label: str | None = None
    believe_record: bool = True
    dry_run: bool = False
    needed_places: tuple[Path, ...] = ()
    needed_wheels: tuple[Path, ...] = ()

    @property
    def order(self) -> FileEdit:
        """The part of it that is about one file."""
        encode = copy_entry if self.packing is None else compress_images(self.packing)
        return FileEdit(selection=self.selection, mode=self.mode, encode=encode)

    @property
    def choice(self) -> str:
        """What stays, in words of the command line."""
        selection = self.selection
        words = [f"--device {device}" for device in sorted(selection.devices)]
        for option, targets in (("--keep", selection.keep), ("--drop", selection.drop)):
            if targets:
                words.append(f"{option} {','.join(map(str, sorted(targets)))}")
        if not selection.drop:
            words.append(f"--keep-ptx {selection.ptx.value}")
        return " ".join(words)
