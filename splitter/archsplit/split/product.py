"""Product of a recipe's own command, in a private folder.

In: a `SplitRecipe`, and the targets to build for. Out: the path of the built file, for as long as a
context lasts. The command is run by the rules of `archsplit.split.own_build`; of the files that
match the recipe's pattern, the one that the command has written counts.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from archsplit.errors import TargetError, ToolFailedError
from archsplit.nvcc.toolkit import choose_toolkit, nvcc_candidates, probe_toolkits
from archsplit.recipe.prebuilt import OUT_PLACEHOLDER
from archsplit.recipe.values import matching_files
from archsplit.split.own_build import read_calls, wrapped_environment, wrapped_toolkit
from archsplit.system.env import source_date_epoch
from archsplit.system.fs import input_errors, output_errors, temporary_dir
from archsplit.system.process import Command, run_checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from archsplit.arch.target import Target
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.context import Effects

OUTPUT_VARIABLE = "ARCHSPLIT_OUT"
"""Environment variable with the output folder of the recipe's command."""

_EPOCH = "SOURCE_DATE_EPOCH"
# Inode, time of change and size: a build that rewrites a file changes at least one.
_FileState = tuple[int, int, int]


@contextlib.contextmanager
def find_product(
    recipe: SplitRecipe,
    effects: Effects,
    *,
    nvcc: Path | None = None,
    targets: tuple[Target, ...] | None = None,
) -> Iterator[Path]:
    """Yield the file to split; a built file is removed afterwards.

    Args:
        nvcc: the value of ``--nvcc``.
        targets: the targets to build for; None for the recipe's.

    Raises:
        ToolNotFoundError: the command's program is not found.
        ToolFailedError: the command failed, or made no matching file, or several.
        InputError: a folder of the pattern can't be read.
        OutputError: the command's private folders can't be made.
    """
    if recipe.product is not None:
        # Another program has built it.
        yield recipe.root / recipe.product
        return
    with temporary_dir() as private:
        folders = OutputFolder(recipe=recipe, folder=private)
        with output_errors(private):
            folders.out.mkdir()
            folders.temporary.mkdir()
        # A pattern inside of the source tree may match files of earlier builds.
        before = folders.find_matches()
        targets = recipe.targets if targets is None else targets
        _run_build(folders, effects, nvcc, targets or ())
        yield folders.product(before)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """Private folders of a recipe's command: its output and its temporary files."""

    recipe: SplitRecipe
    folder: Path = field(repr=False)

    @property
    def out(self) -> Path:
        """Output folder of the command."""
        return self.folder / "out"

    @property
    def temporary(self) -> Path:
        """Folder for ``TMPDIR``, removed with all that a killed compiler leaves."""
        return self.folder / "tmp"

    def command(self, environment: Mapping[str, str]) -> Command:
        """Return the command, with the caller's environment and the private folders."""
        words = (word.replace(OUT_PLACEHOLDER, str(self.out)) for word in self.recipe.source.words)
        epoch = str(source_date_epoch(environment))
        private = {OUTPUT_VARIABLE: str(self.out), "TMPDIR": str(self.temporary)}
        # The caller's own SOURCE_DATE_EPOCH wins; without one the build is reproducible, too.
        env = {_EPOCH: epoch, **environment, **private}
        return Command(argv=tuple(words), cwd=self.recipe.root, env=env)

    def find_matches(self) -> dict[Path, _FileState]:
        """Return the matching files with their state; some may be older than the command."""
        pattern = self.recipe.source.pattern
        relative = pattern.removeprefix(f"{OUT_PLACEHOLDER}/")
        # Only what begins with {out} is searched in the private folder.
        folder = self.recipe.root if relative == pattern else self.out
        with input_errors(folder):
            return {
                folder / name: _file_state(folder / name)
                for name in matching_files(folder, PurePosixPath(relative))
            }

    def product(self, before: Mapping[Path, _FileState]) -> Path:
        """Return the matching file, or the changed one if several match.

        Raises:
            ToolFailedError: no file matches, or several.
        """
        after = self.find_matches()
        written = [path for path, state in after.items() if before.get(path) != state]
        # A build that found nothing to do leaves its earlier result.
        matching = written or list(after)
        if len(matching) != 1:
            raise ToolFailedError(self._match_error(matching), hint=self._match_hint(matching))
        return matching[0]

    def _match_error(self, matching: list[Path]) -> str:
        name, pattern = self.recipe.file, self.recipe.source.pattern
        if not matching:
            return f"{name}: source.build succeeded, but no file matches {pattern}"
        names = ", ".join(sorted(self._display_name(path) for path in matching))
        return f"{name}: source.build left {len(matching)} files that match {pattern}: {names}"

    def _match_hint(self, matching: list[Path]) -> str:
        if matching:
            return "make the pattern match one of them, or split them with a recipe each"
        # Shown, because a wrong pattern is the most frequent mistake.
        files = sorted(self._display_name(path) for path in self.out.rglob("*") if path.is_file())
        what = f"has {', '.join(files[:8])}" if files else "is empty"
        return (
            f"{OUT_PLACEHOLDER} {what}; the command gets that folder as {OUT_PLACEHOLDER} in its"
            f" words and as ${OUTPUT_VARIABLE}"
        )

    def _display_name(self, path: Path) -> str:
        for folder, name in ((self.out, f"{OUT_PLACEHOLDER}/"), (self.recipe.root, "")):
            if path.is_relative_to(folder):
                return f"{name}{path.relative_to(folder)}"
        return str(path)


def _run_build(
    folders: OutputFolder, effects: Effects, nvcc: Path | None, targets: tuple[Target, ...]
) -> None:
    recipe, progress = folders.recipe, effects.progress
    toolkit = _find_toolkit(effects, nvcc) if recipe.source.wrapper else None
    links = folders.folder
    if toolkit is not None:
        links = wrapped_toolkit(
            toolkit,
            effects.environment,
            site_folders=effects.site_folders,
            private=folders.folder,
        )
    calls = folders.folder / "nvcc-calls"
    environment = wrapped_environment(
        effects.environment, toolkit, targets, folder=links, calls=calls
    )
    command = folders.command(environment)
    progress.begin_stage("building", 1, "Ran {} commands")
    began = time.monotonic()
    try:
        run_checked(effects.runner, command, what=f"{recipe.file}: source.build")
    except ToolFailedError as error:
        # A build's own message about a target is one line of thousands.
        if toolkit is not None and (hint := _unsupported_hint(toolkit, targets)):
            raise ToolFailedError(error.args[0], hint=hint) from None
        raise
    progress.finish_step(command.argv[0], time.monotonic() - began)
    if toolkit is not None:
        seen = read_calls(calls)
        for line in seen.lines():
            progress.note(line)
        # Some builds go on without CUDA if nvcc fails.
        if not seen.compiled + seen.cached and (reason := _unsupported_hint(toolkit, targets)):
            progress.note(reason)


def _find_toolkit(effects: Effects, nvcc: Path | None) -> Toolkit | None:
    places = nvcc_candidates(
        explicit=nvcc, environment=effects.environment, site_folders=effects.site_folders
    )
    probes = probe_toolkits(places, effects.runner)
    if nvcc is not None:
        return choose_toolkit(probes)
    # A command may need no compiler: it downloads the wheel, or starts a container.
    found = probes[-1].toolkit
    if found is None:
        effects.progress.note("no usable nvcc: the build runs without the compiler wrapper")
    return found


def _unsupported_hint(toolkit: Toolkit, targets: tuple[Target, ...]) -> str:
    try:
        toolkit.check_targets(targets)
    except TargetError as error:
        return f"{error.args[0]}; {error.hint}"
    return ""


def _file_state(path: Path) -> _FileState:
    status = os.stat(path)  # noqa: PTH116 (Path.stat takes no more)
    return status.st_ino, status.st_mtime_ns, status.st_size
