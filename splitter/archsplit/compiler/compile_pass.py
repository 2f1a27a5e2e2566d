"""A call of nvcc for a recipe's source: its cached objects, and the steps for the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from archsplit.compiler.object_cache import CachedUnit, UnitObjects
from archsplit.nvcc.steps import StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path, PurePosixPath

    from archsplit.arch.target import Target
    from archsplit.compiler.object_cache import SourceUnit
    from archsplit.compiler.request_key import CompileRequest
    from archsplit.nvcc.per_target import TargetObjects
    from archsplit.nvcc.steps import NvccStep
    from archsplit.system.process import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilePass:
    """A call of nvcc.

    Attributes:
        source: relative to the recipe's folder.
        folder: the name of its part of the private folder.
        release: all targets that nvcc is told.
        targets: those that are wanted.
        request: what its results are known by; None where nothing shall be known.
        known: what is in place.
    """

    source: PurePosixPath
    folder: str
    release: tuple[Target, ...]
    targets: tuple[Target, ...]
    request: CompileRequest | None = None
    known: CachedUnit = field(default_factory=lambda: CachedUnit(objects={}))

    @property
    def has(self) -> dict[Target, UnitObjects]:
        """The objects that are in place."""
        found = {target: self.known.objects.get(str(target)) for target in self.targets}
        return {target: made for target, made in found.items() if made is not None}

    @property
    def left(self) -> tuple[Target, ...]:
        """The targets whose objects must be made."""
        return tuple(target for target in self.targets if target not in self.has)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutput:
    """The planned steps of a call of nvcc.

    Attributes:
        view: the step by which the host's compiler reads the source.
        listing: a command that does the same, and lists in ``rule`` what it reads.
        texts: files that must be there before the steps, with their content.
        listed: what was listed.
        unit: how it can be known the next time; None where it can't.
        is_unreadable: whether the host's compiler couldn't read the source.
    """

    asked: CompilePass
    shards: TargetObjects
    view: NvccStep
    listing: Command
    rule: Path
    environment: Mapping[str, str]
    texts: Mapping[Path, str]
    warnings: tuple[str, ...]
    listed: tuple[str, ...] = ()
    unit: SourceUnit | None = None
    is_unreadable: bool = False

    @property
    def name(self) -> str:
        """The name of its folder, and the prefix of its steps' names."""
        return self.asked.folder

    @property
    def source(self) -> PurePosixPath:
        """The source, relative to the recipe's folder."""
        return self.asked.source

    @property
    def objects(self) -> dict[Target, UnitObjects]:
        """The objects that its steps write, by target."""
        relocatable = self.shards.relocatable
        return {
            target: UnitObjects(linked=linked, relocatable=relocatable.get(target))
            for target, linked in self.shards.objects.items()
        }

    def without_preprocessing(self, said: str) -> PassOutput:
        """The part once its source has been preprocessed, which printed ``said``."""
        # Without CUDA the source is read by the compile itself.
        if self.view.kind is not StepKind.PREPROCESS:
            return self
        steps = tuple(step for step in self.shards.steps if step.writes != self.view.writes)
        warnings = (*self.warnings, *filter(None, [said.rstrip()]))
        return replace(self, shards=replace(self.shards, steps=steps), warnings=warnings)


def collect_objects(
    passes: Sequence[CompilePass], parts: Sequence[PassOutput]
) -> list[Mapping[Target, UnitObjects]]:
    """Return the objects of each pass by target, cached or to be compiled."""
    made = {part.name: part.objects for part in parts}
    return [{**one.has, **made.get(one.folder, {})} for one in passes]


def group_by_target(
    targets: Sequence[Target], made: Iterable[Mapping[Target, Path | None]]
) -> dict[Target, tuple[Path, ...]]:
    """The files of each target, in the order of the passes."""
    files: dict[Target, tuple[Path, ...]] = dict.fromkeys(targets, ())
    for each in made:
        for target, path in each.items():
            # A target without relocatable code has no second object.
            if path is not None:
                files[target] += (path,)
    return files
