"""Split of the file that a recipe names.

In: a `SplitRecipe`. Out: the wheels of the split (`split_by_recipe`), or its plan (`plan_split`).
The file exists, or a command of the recipe builds it into a private folder first. A plan is made
without running or writing anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import time
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import PackBy, image_sizes, plan_packs
from archsplit.devicecode.recompress import recompress_level
from archsplit.devicecode.registered import registered_containers
from archsplit.errors import NothingToDoError, TargetError, ToolFailedError
from archsplit.formats.elf import Elf
from archsplit.formats.reader import open_file
from archsplit.nvcc.toolkit import choose_toolkit, nvcc_candidates, probe_toolkits
from archsplit.recipe.prebuilt import OUT_PLACEHOLDER
from archsplit.recipe.values import matching_files
from archsplit.release.report import Release
from archsplit.release.wheel_plans import project_metadata
from archsplit.split.find import find_splittable
from archsplit.split.model import InstallDefaults, SplitRequest, planned_extras
from archsplit.split.own_build import read_calls, wrapped_environment, wrapped_toolkit
from archsplit.split.sources import LibraryProject, split_library
from archsplit.split.split import split_wheel
from archsplit.split.take_apart import unmoved_images
from archsplit.system.env import source_date_epoch
from archsplit.system.fs import (
    copy_into,
    input_errors,
    output_errors,
    temporary_dir,
)
from archsplit.system.process import Command, run_checked
from archsplit.system.scratch import ScratchFiles
from archsplit.system.units import count_text, short_size
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Target
    from archsplit.devicecode.partition import ImagePlace, PackContents
    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.nvcc.toolkit import Toolkit
    from archsplit.recipe.model import Project
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.context import Effects
    from archsplit.release.report import UnmovedCode

OUTPUT_VARIABLE = "ARCHSPLIT_OUT"
"""Environment variable with the output folder of the recipe's command."""

FAT_FOLDER = "fat"
"""Folder of the output for the fat wheel that a recipe's command has built."""

_EPOCH = "SOURCE_DATE_EPOCH"
# Inode, time of change and size: a build that rewrites a file changes at least one.
_FileState = tuple[int, int, int]

SPLIT_PLAN_SCHEMA = 1

_Containers = list[tuple["FatbinEntry", ...]]


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
        # Somebody else has built it.
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
        """Return the output folder of the command."""
        return self.folder / "out"

    @property
    def temporary(self) -> Path:
        """Return the command's ``TMPDIR``, removed with all that a killed compiler leaves."""
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
        what = (
            f"{OUT_PLACEHOLDER} has {', '.join(files[:8])}"
            if files
            else f"{OUT_PLACEHOLDER} is empty"
        )
        return (
            f"{what}; the command gets that folder as {OUT_PLACEHOLDER} in its words and as "
            f"${OUTPUT_VARIABLE}"
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


def split_by_recipe(
    recipe: SplitRecipe,
    effects: Effects,
    *,
    out: Path,
    targets: tuple[Target, ...] | None = None,
    nvcc: Path | None = None,
) -> Release:
    """Split the file of a recipe; build it first if the recipe has a command.

    A wheel that was built is kept, in the folder `FAT_FOLDER` of ``out``.

    Args:
        targets: the targets to write packs for, instead of the recipe's.
        nvcc: the nvcc behind the compiler wrapper; None to search it.

    Raises:
        BudgetError: a wheel is larger than the policy allows.
        ArchsplitError: the build or the split failed; ``out`` is unchanged.
    """
    with find_product(recipe, effects, nvcc=nvcc, targets=targets) as product:
        request = split_request(recipe, product, out=out, targets=targets)
        try:
            report = _split_product(recipe, request, effects)
        except NothingToDoError as error:
            if recipe.product is not None:
                raise
            # The wheel is in a private folder, and `--copy` is not for a recipe.
            found = error.args[0].replace(str(product), f"{OUT_PLACEHOLDER}/{product.name}")
            raise NothingToDoError(
                f"{recipe.file}: source.build succeeded, but {found}", hint=_NO_CODE_HINT
            ) from None
        _keep_product(recipe, product, out)
        return report


def _split_product(recipe: SplitRecipe, request: SplitRequest, effects: Effects) -> Release:
    policy = recipe.policy
    if policy is None or not policy.is_limited:
        _tell_missing_targets(recipe, request, effects)
    else:
        check = partial(Release.check_budget, policy=policy, name=recipe.applied)
        request = replace(request, check=check)
    if recipe.project is None:
        return split_wheel(request, effects)
    return split_library(request, effects, library_project(recipe.project, recipe))


def _tell_missing_targets(recipe: SplitRecipe, request: SplitRequest, effects: Effects) -> None:
    """Note the targets that the recipe's command has not compiled for."""
    if recipe.product is not None or recipe.makes_library or not request.targets:
        return
    with temporary_dir() as folder:
        containers, _ = _wheel_containers(request.source, folder)
    made = {entry.target for entries in containers for entry in entries if entry.target}
    missing = sorted(set(request.targets) - made)
    if made and missing:
        effects.progress.note(
            f"the build has no code for {_names(missing)}, only for {_names(sorted(made))}: give it"
            " the recipe's targets, as in sh -c 'NVCC_APPEND_FLAGS=\"$ARCHSPLIT_GENCODE\" …'"
        )


_NO_CODE_HINT = (
    "run the command by hand and read its output: some builds go on without CUDA if nvcc fails"
    " or is not found, others install no extension module"
)


def _names(targets: Iterable[Target]) -> str:
    return ", ".join(map(str, targets))


def _keep_product(recipe: SplitRecipe, product: Path, out: Path) -> None:
    """Keep a wheel that the recipe's command has built: a build may take hours."""
    if recipe.product is None and not recipe.makes_library:
        copy_into(product, out / FAT_FOLDER)


def library_project(project: Project, recipe: SplitRecipe) -> LibraryProject:
    """Return the project of a recipe's library: metadata, Python files and licenses of its core.

    Raises:
        InputError: the readme can't be read.
    """
    root, python = recipe.root, recipe.python
    return LibraryProject(
        metadata=project_metadata(project, root),
        package=python.package if python else project.name.replace("-", "_"),
        files={str(path): root / python.root / path for path in python.files} if python else {},
        licenses={str(path): root / path for path in project.license_files},
    )


def split_request(
    recipe: SplitRecipe, product: Path, *, out: Path, targets: tuple[Target, ...] | None
) -> SplitRequest:
    """Return the request to split a recipe's file."""
    return SplitRequest(
        source=product,
        out=out,
        name=recipe.split.name,
        by=PackBy(recipe.split.by),
        targets=recipe.targets if targets is None else targets,
        install=InstallDefaults(recipe.install.mode),
        release=recipe.is_release,
        recompress=recompress_level(recipe.split.recompress),
        dropped=recipe.split.dropped,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPack:
    """A planned pack: its name, the capabilities that it serves, and the size of its images."""

    pack: str
    serves: tuple[str, ...]
    images: int
    image_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Plan of a recipe's split.

    Attributes:
        source: the file to split, or the pattern that matches it.
        command: the shell command that builds the file; "" if the file exists.
        folder: the working folder of the command.
        install: see `archsplit.split.model.InstallDefaults`.
        packs: the packs; None if the file does not exist yet.
        extras: the packs of each extra of the core.
    """

    source: str
    command: str
    folder: str
    name: str | None
    by: str
    targets: tuple[str, ...] | None
    install: str
    packs: tuple[PlannedPack, ...] | None = None
    extras: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unmoved: tuple[UnmovedCode, ...] = ()

    def as_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps({"schema": SPLIT_PLAN_SCHEMA, "kind": "split", **asdict(self)}, indent=2)

    def text(self) -> str:
        """Return the plan as text."""
        lines = []
        if self.command:
            lines.append(
                f"in {self.folder}, with {OUTPUT_VARIABLE}={OUT_PLACEHOLDER}, an empty folder:"
            )
            lines += [f"   {self.command}", f"then the file that matches {self.source} is split"]
        else:
            lines.append(f"{self.source} is split")
        lines.append(f"by {self.by}, for {', '.join(self.targets or ['every GPU'])}")
        lines.append(f"installed as {self.install}" + (f", named {self.name}" if self.name else ""))
        for pack in self.packs or ():
            what = f"GPUs of capability {', '.join(pack.serves)}" if pack.serves else ""
            images = f"{short_size(pack.image_bytes):>10} in {count_text(pack.images, 'image'):>12}"
            lines.append(f"{images}  {pack.pack:10} {what}".rstrip())
        for one in self.unmoved:
            lines.append(f"{one.name}: kept {count_text(one.images, 'image')}: {one.why}")
        return "\n".join(lines)


def plan_split(recipe: SplitRecipe, targets: tuple[Target, ...] | None = None) -> SplitPlan:
    """Return the plan of a recipe's split; nothing is run or written.

    Raises:
        InputError: the file can't be read, or has nothing to split.
        ArchsplitError: the file is damaged.
    """
    # Without a product the path is never opened; only the options of the request are shown.
    product = recipe.root / (recipe.product or "")
    request = split_request(recipe, product, out=Path(), targets=targets)
    plan = SplitPlan(
        source=str(recipe.product or recipe.source.pattern),
        command=shlex.join(recipe.source.words),
        folder=str(recipe.root),
        name=recipe.project.name if recipe.project else request.name,
        by=request.by.value,
        targets=None if request.targets is None else tuple(map(str, request.targets)),
        install=request.install.value,
    )
    return (
        plan
        if recipe.product is None
        else _with_packs(plan, request, is_wheel=not recipe.makes_library)
    )


def _with_packs(plan: SplitPlan, request: SplitRequest, *, is_wheel: bool) -> SplitPlan:
    with temporary_dir() as folder:
        # Libraries of a wheel are unpacked to be read.
        containers, unmoved = (
            _wheel_containers(request.source, folder)
            if is_wheel
            else _library_containers(request.source)
        )
        pack_plan = plan_packs(containers, request.by, request.targets)
        sizes = image_sizes(containers)
        packs = tuple(_planned_pack(contents, sizes) for contents in pack_plan.packs)
    return replace(plan, packs=packs, extras=planned_extras(pack_plan), unmoved=unmoved)


def _wheel_containers(path: Path, folder: Path) -> tuple[_Containers, tuple[UnmovedCode, ...]]:
    with open_wheel(path, same_tags=False) as wheel:
        scan = find_splittable(wheel, ScratchFiles(folder, memory=0))
    containers: _Containers = []
    unmoved = list(scan.unmoved)
    for library in scan.libraries:
        library_containers, library_unmoved = _library_containers(library.path)
        containers += library_containers
        unmoved += [replace(one, name=library.name) for one in library_unmoved]
    return containers, tuple(unmoved)


def _library_containers(path: Path) -> tuple[_Containers, tuple[UnmovedCode, ...]]:
    registered = registered_containers(Elf(open_file(path)))
    movable = [one.entries for one in registered if one.wrapper is not None]
    return movable, tuple(unmoved_images(path.name, registered))


def _planned_pack(contents: PackContents, sizes: Mapping[ImagePlace, int]) -> PlannedPack:
    return PlannedPack(
        pack=contents.name,
        serves=tuple(map(str, contents.serves)),
        images=len(contents.places),
        image_bytes=sum(sizes[place] for place in contents.places),
    )
