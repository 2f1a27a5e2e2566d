"""Split of the file that a recipe names.

In: a `SplitRecipe`. Out: the wheels of the split (`split_by_recipe`), or its plan (`plan_split`).
The file exists, or a command of the recipe builds it first (`archsplit.split.product`). A plan is
made without running or writing anything.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import PackBy, image_sizes, plan_packs
from archsplit.devicecode.recompress import recompress_level
from archsplit.devicecode.registered import registered_containers
from archsplit.errors import NothingToDoError
from archsplit.formats.elf import Elf
from archsplit.formats.reader import open_file
from archsplit.recipe.prebuilt import OUT_PLACEHOLDER
from archsplit.release.report import Release
from archsplit.release.wheel_plans import project_metadata
from archsplit.split.find import find_splittable
from archsplit.split.model import InstallDefaults, SplitRequest, planned_extras
from archsplit.split.product import OUTPUT_VARIABLE, find_product
from archsplit.split.sources import LibraryProject, split_library
from archsplit.split.split import split_wheel
from archsplit.split.take_apart import unmoved_images
from archsplit.system.fs import copy_into, temporary_dir
from archsplit.system.scratch import ScratchFiles
from archsplit.system.units import count_text, short_size
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from archsplit.arch.target import Target
    from archsplit.devicecode.partition import ImagePlace, PackContents
    from archsplit.formats.fatbin import FatbinEntry
    from archsplit.recipe.model import Project
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.context import Effects
    from archsplit.release.report import UnmovedCode

FAT_FOLDER = "fat"
"""Folder of the output for the fat wheel that a recipe's command has built."""

SPLIT_PLAN_SCHEMA = 1

_Containers = list[tuple["FatbinEntry", ...]]


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
        # A build may take hours, so its wheel is kept.
        if recipe.product is None and not recipe.splits_library:
            copy_into(product, out / FAT_FOLDER)
        return report


def _split_product(recipe: SplitRecipe, request: SplitRequest, effects: Effects) -> Release:
    policy = recipe.policy
    if policy is None or not policy.is_limited:
        _note_missing_targets(recipe, request, effects)
    else:
        check = partial(Release.check_budget, policy=policy, name=recipe.applied)
        request = replace(request, check=check)
    if recipe.project is None:
        return split_wheel(request, effects)
    return split_library(request, effects, library_project(recipe.project, recipe))


def _note_missing_targets(recipe: SplitRecipe, request: SplitRequest, effects: Effects) -> None:
    """Note the targets that the recipe's command has not compiled for."""
    if recipe.product is not None or recipe.splits_library or not request.targets:
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
    if recipe.product is None:
        return plan
    return _with_packs(plan, request, is_wheel=not recipe.splits_library)


def _with_packs(plan: SplitPlan, request: SplitRequest, *, is_wheel: bool) -> SplitPlan:
    with temporary_dir() as folder:
        # Libraries of a wheel are unpacked to be read.
        containers, unmoved = (
            _wheel_containers(request.source, folder)
            if is_wheel
            else _library_containers(request.source)
        )
        pack_plan = plan_packs(containers, request.by, request.targets, subject=request.source.name)
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
