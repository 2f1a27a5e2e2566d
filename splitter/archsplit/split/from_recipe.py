"""What a recipe would split, and into what: nothing is run, and nothing written."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.devicecode.partition import plan_packs
from archsplit.devicecode.registered import registered_containers
from archsplit.formats.elf import Elf
from archsplit.formats.mapped import open_file
from archsplit.recipe.prebuilt import OUT
from archsplit.split.by_recipe import request_of
from archsplit.split.core_wheel import extras_of
from archsplit.split.find import find_splittable
from archsplit.split.obstacles import stays_of
from archsplit.split.product import OUTPUT_VARIABLE
from archsplit.system.fs import temporary_dir
from archsplit.wheels.reader import open_wheel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.arch.target import Target
    from archsplit.devicecode.partition import PackContents
    from archsplit.formats.entry import FatbinEntry
    from archsplit.recipe.prebuilt import SplitRecipe
    from archsplit.release.request import SplitRequest
    from archsplit.release.split_report import UnmovedCode

SPLIT_PLAN_SCHEMA = 1

_Containers = list[tuple["FatbinEntry", ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPack:
    """A pack that would be made: its name, whom it serves, and what it has."""

    pack: str
    serves: tuple[str, ...]
    images: int
    image_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """What would be done.

    Attributes:
        source: the file, or the pattern that it will be found by.
        command: what makes it, for a shell; "" where it is there already.
        folder: where that runs.
        install: see `archsplit.release.request.InstallDefaults`.
        packs: None where the source isn't there yet.
        extras: of the core, each with the packs that it brings.
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
    stays: tuple[UnmovedCode, ...] = ()

    def as_json(self) -> str:
        """For programs."""
        return json.dumps({"schema": SPLIT_PLAN_SCHEMA, "kind": "split", **asdict(self)}, indent=2)

    def text(self) -> str:
        """For people."""
        lines = []
        if self.command:
            lines.append(f"in {self.folder}, with {OUTPUT_VARIABLE}={OUT}, an empty folder:")
            lines += [f"   {self.command}", f"then the file that matches {self.source} is split"]
        else:
            lines.append(f"{self.source} is split")
        lines.append(f"by {self.by}, for {', '.join(self.targets or ['every GPU'])}")
        lines.append(f"installed as {self.install}" + (f", named {self.name}" if self.name else ""))
        for pack in self.packs or ():
            what = f"GPUs of capability {', '.join(pack.serves)}" if pack.serves else ""
            size = f"{pack.image_bytes / 1e6:8.1f} MB"
            lines.append(f"{size} in {pack.images:5} images  {pack.pack:10} {what}".rstrip())
        for one in self.stays:
            lines.append(f"{one.name}: {one.images} images stay: {one.why}")
        return "\n".join(lines)


def plan_split(recipe: SplitRecipe, targets: tuple[Target, ...] | None = None) -> SplitPlan:
    """Say what a recipe would do, and what would come of it where that can be known.

    Raises:
        InputError: the file can't be read, or has nothing to split.
        ArchsplitError: it is damaged.
    """
    product = recipe.root / (recipe.product or "")
    request = request_of(recipe, product, out=Path(), targets=targets)
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
        containers, stays = (_of_wheel if is_wheel else _of_library)(request.source, folder)
        shares = plan_packs(containers, request.by, request.targets)
        packs = tuple(_planned(share, containers) for share in shares.packs)
    return replace(plan, packs=packs, extras=extras_of(shares), stays=stays)


def _of_wheel(path: Path, folder: Path) -> tuple[_Containers, tuple[UnmovedCode, ...]]:
    with open_wheel(path, same_tags=False) as wheel:
        found = find_splittable(wheel, folder)
    containers: _Containers = []
    stays = list(found.stays)
    for fat in found.fat:
        more, left = _of_library(fat.path, folder)
        containers += more
        stays += [replace(one, name=fat.name) for one in left]
    return containers, tuple(stays)


def _of_library(path: Path, folder: Path) -> tuple[_Containers, tuple[UnmovedCode, ...]]:
    del folder
    places = registered_containers(Elf(open_file(path)))
    moving = [place.entries for place in places if place.wrapper is not None]
    return moving, tuple(stays_of(path.name, places))


def _planned(share: PackContents, containers: Sequence[Sequence[FatbinEntry]]) -> PlannedPack:
    sizes = [
        entry.size
        for entries, offsets in zip(containers, share.offsets, strict=True)
        for entry in entries
        if entry.offset in offsets
    ]
    return PlannedPack(
        pack=share.name,
        serves=tuple(map(str, share.serves)),
        images=len(sizes),
        image_bytes=sum(sizes),
    )
