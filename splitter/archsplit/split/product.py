"""What a recipe splits: a file that is there, or that its command makes."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from archsplit.errors import ToolFailedError
from archsplit.recipe.globs import matching_files
from archsplit.recipe.prebuilt import OUT
from archsplit.system.epoch import source_date_epoch
from archsplit.system.fs import input_errors, output_errors, temporary_dir
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.context import Effects

OUTPUT_VARIABLE = "ARCHSPLIT_OUT"
"""What the command finds its folder by, when it doesn't take it from its own words."""

_EPOCH = "SOURCE_DATE_EPOCH"
_Seen = tuple[int, int, int]


@contextlib.contextmanager
def find_product(recipe: SplitRecipe, workshop: Effects) -> Iterator[Path]:
    """Give the file that is to be split; what was built for it is gone afterwards.

    Raises:
        ToolNotFoundError: the command's program is not there.
        ToolFailedError: it failed, or made no file that matches, or several.
        InputError: a folder that the pattern leads to can't be read.
        OutputError: there is no room for the command's own folders.
    """
    if recipe.product is not None:
        yield recipe.root / recipe.product
        return
    with temporary_dir() as private:
        room = OutputFolder(recipe=recipe, folder=private)
        with output_errors(private):
            room.out.mkdir()
            room.temporary.mkdir()
        before = room.matches()
        _run(room, workshop)
        yield room.product(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """Where a recipe's command runs, and what it may write to besides the recipe's folder."""

    recipe: SplitRecipe
    folder: Path = field(repr=False)

    @property
    def out(self) -> Path:
        """The folder that is given to the command."""
        return self.folder / "out"

    @property
    def temporary(self) -> Path:
        """Its ``TMPDIR``: what a killed compiler leaves there goes, too."""
        return self.folder / "tmp"

    def command(self, environment: Mapping[str, str]) -> Command:
        """The command; it has the caller's environment, because a build needs what builds need."""
        words = (word.replace(OUT, str(self.out)) for word in self.recipe.source.words)
        epoch = str(source_date_epoch(environment))
        own = {OUTPUT_VARIABLE: str(self.out), "TMPDIR": str(self.temporary)}
        env = {_EPOCH: epoch, **environment, **own}
        return Command(argv=tuple(words), cwd=self.recipe.root, env=env)

    def matches(self) -> dict[Path, _Seen]:
        """The files that match now; those outside of our own folder may be there from before."""
        pattern = self.recipe.source.pattern
        own = pattern.removeprefix(f"{OUT}/")
        place = self.recipe.root if own == pattern else self.out
        with input_errors(place):
            return {
                place / name: _seen(place / name)
                for name in matching_files(place, PurePosixPath(own))
            }

    def product(self, before: Mapping[Path, _Seen]) -> Path:
        """The one file that matches. If there are several, the one that was written is it."""
        now = self.matches()
        written = [path for path, seen in now.items() if before.get(path) != seen]
        found = written or list(now)
        if len(found) != 1:
            raise ToolFailedError(self._wrong(found), hint=self._hint(found))
        return found[0]

    def _wrong(self, found: list[Path]) -> str:
        name, pattern = self.recipe.file, self.recipe.source.pattern
        if not found:
            return f"{name}: source.build ended well, but no file matches {pattern}"
        names = ", ".join(sorted(self._shown(path) for path in found))
        return f"{name}: source.build left {len(found)} files that match {pattern}: {names}"

    def _hint(self, found: list[Path]) -> str:
        if found:
            return "make the pattern match one of them, or split them with a recipe each"
        there = sorted(self._shown(path) for path in self.out.rglob("*") if path.is_file())
        what = f"{OUT} has {', '.join(there[:8])}" if there else f"{OUT} is empty"
        return (
            f"{what}; the command gets that folder as {OUT} in its words and as ${OUTPUT_VARIABLE}"
        )

    def _shown(self, path: Path) -> str:
        for place, name in ((self.out, f"{OUT}/"), (self.recipe.root, "")):
            if path.is_relative_to(place):
                return f"{name}{path.relative_to(place)}"
        return str(path)


def _run(room: OutputFolder, workshop: Effects) -> None:
    command = room.command(workshop.environment)
    workshop.progress.begin("build", 1)
    began = time.monotonic()
    run_checked(workshop.runner, command, what=f"{room.recipe.file}: source.build")
    workshop.progress.finished(command.argv[0], time.monotonic() - began)


def _seen(path: Path) -> _Seen:
    status = os.stat(path)  # noqa: PTH116 (Path.stat takes no more)
    return status.st_ino, status.st_mtime_ns, status.st_size
