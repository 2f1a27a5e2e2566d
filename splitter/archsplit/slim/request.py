"""The settings of slimming, and the edit of one file that follows from them."""

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
    """The settings of slimming.

    Attributes:
        source: a library, object, static library, fatbin, wheel or site-packages folder.
        out: the output folder.
        recompress: compression for uncompressed machine code; None leaves it uncompressed.
        zeroes_unregistered: overwrite code that only the library finds, where no GPU needs it; None
            for libraries of which a GPU has proven that it changes no result.
        label: local version label of a wheel, "" for a default one; None for a build tag.
        trust_record: False accepts members that don't match RECORD.
        dry_run: plan, and write nothing.
        needed_folders: site-packages folders with dependencies of the libraries.
        needed_wheels: wheels with dependencies of the libraries.
    """

    source: Path
    out: Path
    selection: Selection
    mode: EditMode = EditMode.SHRINK
    recompress: CompressMode | None = None
    zeroes_unregistered: bool | None = None
    label: str | None = None
    trust_record: bool = True
    dry_run: bool = False
    needed_folders: tuple[Path, ...] = ()
    needed_wheels: tuple[Path, ...] = ()

    @property
    def file_edit(self) -> FileEdit:
        """The settings for one file."""
        # Copying is a range of the old file; compressing makes new bytes, which take memory.
        encode = copy_entry if self.recompress is None else compress_images(self.recompress)
        return FileEdit(
            selection=self.selection,
            mode=self.mode,
            zeroes_unregistered=self.zeroes_unregistered,
            encode=encode,
        )

    @property
    def name_label(self) -> str:
        """The choice as a part of a file name."""
        return f"{self.selection.label}.zero" if self.zeroes_unregistered else self.selection.label

    @property
    def choice(self) -> str:
        """The selection in options of the command line."""
        selection = self.selection
        words = [f"--device {device}" for device in sorted(selection.devices)]
        for option, targets in (("--keep", selection.keep), ("--drop", selection.drop)):
            if targets:
                words.append(f"{option} {','.join(map(str, sorted(targets)))}")
        # `--keep-ptx` has no effect beside `--drop`.
        if not selection.drop:
            words.append(f"--keep-ptx {selection.ptx.value}")
        if self.zeroes_unregistered is not None:
            words.append(f"--unregistered {'zero' if self.zeroes_unregistered else 'keep'}")
        return " ".join(words)
