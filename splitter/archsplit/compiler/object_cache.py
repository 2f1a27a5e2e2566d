"""The objects of a recipe's sources, found without a dry run and without preprocessing.

In: the request of a call of nvcc. Out: the objects of each target, written into the folder of the
source, or None. After a build the objects of all sources that were compiled are stored. A
`CompilePass` is such a call: its cached objects, and the steps for the others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cache.entry import KeyComponent
from archsplit.compiler.direct_cache import CompletedCompile, DirectCache
from archsplit.compiler.include_scan import TextScans
from archsplit.compiler.keys import (
    DEPFILE_FLAG,
    CompileRequest,
    folder_component,
    has_unsupported_flags,
    line_info_flag,
    split_flags,
)
from archsplit.compiler.machine_facts import variable_components
from archsplit.nvcc.dryrun import StepKind, option_values
from archsplit.nvcc.variables import debug_folder
from archsplit.system.outputs import overwrite_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import PurePosixPath

    from archsplit.arch.target import Target
    from archsplit.cache.cache import Cache
    from archsplit.compiler.direct_cache import CachedResult
    from archsplit.compiler.include_scan import TextScan
    from archsplit.compiler.step_cache import StepCache
    from archsplit.compiler.tool_identity import ToolIdentities
    from archsplit.nvcc.dryrun import NvccStep
    from archsplit.nvcc.per_target import TargetObjects
    from archsplit.scheduler.graph import Step
    from archsplit.scheduler.outcome import FinishedStep
    from archsplit.system.process import Command

_OBJECT, _RELOCATABLE, _INCLUDES = "object", "relocatable", "includes"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitObjects:
    """The objects of a source for one target.

    Attributes:
        linked: what the host's linker takes.
        relocatable: what the device link takes; None where there is none.
    """

    linked: Path
    relocatable: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedUnit:
    """The cached objects of a source.

    Attributes:
        objects: those that are in place, by target.
        includes: the files that its host code includes, without the system's.
        output: the warnings.
    """

    objects: Mapping[str, UnitObjects]
    includes: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUnit:
    """A source that is compiled now, and stored in the cache afterwards.

    Attributes:
        name: what the names of its steps begin with.
        source: absolute.
        request: what is asked of nvcc.
        objects: what the steps make, by target.
        host_step: the command by which the host compiler reads the source.
        depfile: the depfile that this command wrote.
        texts: preprocessed texts, all of them.
        tools: programs beside nvcc's own, absolute.
        environment: what the steps see.
        includes: as for `CachedUnit`.
        output: of the tools that ran while it was planned.
    """

    name: str
    source: Path
    request: CompileRequest
    objects: Mapping[str, UnitObjects]
    host_step: tuple[str, ...]
    depfile: Path
    texts: tuple[Path, ...]
    tools: tuple[str, ...]
    environment: Mapping[str, str]
    includes: tuple[str, ...]
    output: str


class ObjectCache:
    """Cache of the objects that earlier builds have made of a recipe's sources.

    Args:
        cache: where results are.
        tools: asks programs about themselves.
        environment: what the recipe's programs run in.
        version: archsplit's own, which decides how steps are changed.

    Attributes:
        saved: CPU seconds that each cached object saved.
    """

    def __init__(
        self, cache: Cache, tools: ToolIdentities, *, environment: Mapping[str, str], version: str
    ) -> None:
        self._cache = cache
        self._tools = tools
        self._environment = environment
        self._version = version
        self._began = time.time_ns()
        self._lookups: dict[str, DirectCache] = {}
        # Sources of a build include the same headers.
        self._scans: dict[bytes, TextScan] = {}
        self.saved: list[float] = []

    def request(self, argv: tuple[str, ...], *, nvcc: Path, unit: str) -> CompileRequest:
        """Return the request of a call of nvcc.

        Args:
            argv: nvcc's arguments, wherever the private folder is.
            nvcc: the toolkit around it is meant, too.
            unit: the name of the translation unit.
        """
        cwd = self._tools.cwd
        flag = line_info_flag(split_flags(argv))
        return CompileRequest(
            parts=(
                KeyComponent("archsplit", self._version),
                KeyComponent("salt", self._cache.settings.salt),
                KeyComponent("path of nvcc", str(nvcc)),
                *([folder_component(flag, debug_folder(cwd, self._environment))] if flag else []),
                *self._tools.driver(str(nvcc), self._environment),
                *variable_components(self._environment, epoch=False, driver=True),
                KeyComponent("unit", unit),
                *(KeyComponent("flag", word) for word in argv),
            ),
            cwd=cwd,
            named={},
        )

    def restore(self, request: CompileRequest, targets: Sequence[str], folder: Path) -> CachedUnit:
        """Write the cached objects into an existing folder.

        Threads may do that for several sources at a time: a remote store takes its time.
        """
        settings = self._cache.settings
        # Both settings ask for a look at each step.
        if settings.strict or settings.mode == "verify":
            return CachedUnit(objects={})
        lookup = DirectCache(self._cache, request, environment=self._environment, tools=self._tools)
        self._lookups[request.key] = lookup
        found = lookup.find(targets)
        written = {target: _write_objects(one, folder) for target, one in found.items()}
        # What can't be placed is compiled again.
        objects = {target: made for target, made in written.items() if made is not None}
        self.saved += [found[target].cpu_seconds for target in objects]
        return CachedUnit(
            objects=objects,
            includes=_merged(_includes(found[target]) for target in objects),
            output=_merged([found[target].stdout, found[target].stderr] for target in objects),
        )

    def explain(self, unit: SourceUnit) -> tuple[str, ...]:
        """Return the reasons why a source wasn't found in the cache, a line each."""
        lookup = self._lookups.get(unit.request.key)
        return ("its includes were not scanned",) if lookup is None else lookup.explain()

    def store(
        self,
        unit: SourceUnit,
        steps: Sequence[Step],
        finished: Sequence[FinishedStep],
        step_cache: StepCache,
        private: Path,
    ) -> None:
        """Store what the unit's steps have made, which all went well."""
        lookup = self._lookups.get(unit.request.key)
        step_argv = (step.command.argv for step in steps)
        commands = (unit.host_step, *(argv for argv in step_argv if argv[0] not in unit.tools))
        stdout = "".join(done.stdout for done in finished)
        stderr = unit.output + "".join(done.stderr for done in finished)
        if (
            lookup is None
            or any(map(has_unsupported_flags, commands))
            or str(private) in stdout + stderr
        ):
            return
        saved = sum(step_cache.saved_by.get(step.name, 0.0) for step in steps)
        done = CompletedCompile(
            outputs={target: _files(each) for target, each in unit.objects.items()},
            notes={target: _notes(each, unit.includes) for target, each in unit.objects.items()},
            texts=unit.texts,
            host_depfiles=(unit.depfile, *_host_depfiles(commands)),
            commands=commands,
            tools=unit.tools,
            environment=unit.environment,
            private=private,
            began=self._began,
            stdout=stdout,
            stderr=stderr,
            cpu_seconds=sum(done.cpu_seconds for done in finished) + saved,
        )
        lookup.count_misses(done)
        lookup.store(done, TextScans(self._scans, parts=step_cache.parts))


def _host_depfiles(commands: Iterable[tuple[str, ...]]) -> tuple[Path, ...]:
    return tuple(Path(name) for argv in commands for name in option_values(argv, (DEPFILE_FLAG,)))


def _files(made: UnitObjects) -> dict[str, Path]:
    paths = (made.linked, *([made.relocatable] if made.relocatable is not None else []))
    return {path.name: path for path in paths}


def _notes(made: UnitObjects, includes: tuple[str, ...]) -> dict[str, str]:
    notes = {_OBJECT: made.linked.name, _INCLUDES: "\0".join(includes)}
    if made.relocatable is not None:
        notes[_RELOCATABLE] = made.relocatable.name
    return notes


def _write_objects(found: CachedResult, folder: Path) -> UnitObjects | None:
    """Write what is known; None if it isn't what a unit would have stored, or can't be written."""
    linked = found.notes.get(_OBJECT)
    relocatable = found.notes.get(_RELOCATABLE, linked)
    if linked is None or found.outputs.keys() != {linked, relocatable}:
        return None
    if any(Path(name).name != name for name in found.outputs):
        return None
    try:
        for name, content in found.outputs.items():
            overwrite_file(folder / name, content)
    except OSError:
        # The build's own steps say it better.
        return None
    other = found.notes.get(_RELOCATABLE)
    return UnitObjects(
        linked=folder / linked, relocatable=None if other is None else folder / other
    )


def _includes(found: CachedResult) -> tuple[str, ...]:
    return tuple(filter(None, found.notes.get(_INCLUDES, "").split("\0")))


def _merged(texts: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for each in texts for text in each if text))


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilePass:
    """A call of nvcc.

    Attributes:
        source: relative to the recipe's folder.
        folder: the name of its part of the private folder.
        release: all targets on the command line of nvcc.
        targets: those that are wanted.
        request: the key of its results; None without a cache.
        cached: the objects that are in place.
    """

    source: PurePosixPath
    folder: str
    release: tuple[Target, ...]
    targets: tuple[Target, ...]
    request: CompileRequest | None = None
    cached: CachedUnit = field(default_factory=lambda: CachedUnit(objects={}))

    @property
    def cached_objects(self) -> dict[Target, UnitObjects]:
        """Return the objects that are in place."""
        found = {target: self.cached.objects.get(str(target)) for target in self.targets}
        return {target: made for target, made in found.items() if made is not None}

    @property
    def missing(self) -> tuple[Target, ...]:
        """Return the targets whose objects must be made."""
        return tuple(target for target in self.targets if target not in self.cached_objects)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutput:
    """The planned steps of a call of nvcc.

    Attributes:
        host_step: the step by which the host compiler reads the source.
        depfile_step: a command that does the same, and writes ``depfile``.
        texts: files that must be there before the steps, with their content.
        includes: the files in the depfile.
        unit: the source for the cache; None without a cache.
        is_unreadable: whether the host's compiler couldn't read the source.
    """

    compile_pass: CompilePass
    shards: TargetObjects
    host_step: NvccStep
    depfile_step: Command
    depfile: Path
    environment: Mapping[str, str]
    texts: Mapping[Path, str]
    warnings: tuple[str, ...]
    includes: tuple[str, ...] = ()
    unit: SourceUnit | None = None
    is_unreadable: bool = False

    @property
    def name(self) -> str:
        """Return the name of its folder, and the prefix of its steps' names."""
        return self.compile_pass.folder

    @property
    def source(self) -> PurePosixPath:
        """Return the source, relative to the recipe's folder."""
        return self.compile_pass.source

    @property
    def objects(self) -> dict[Target, UnitObjects]:
        """Return the objects that its steps write, by target."""
        relocatable = self.shards.relocatable
        return {
            target: UnitObjects(linked=linked, relocatable=relocatable.get(target))
            for target, linked in self.shards.objects.items()
        }

    def without_preprocessing(self, output: str) -> PassOutput:
        """Return the part once its source has been preprocessed, which printed ``output``."""
        # Without CUDA the source is read by the compile itself.
        if self.host_step.kind is not StepKind.PREPROCESS:
            return self
        steps = tuple(step for step in self.shards.steps if step.writes != self.host_step.writes)
        warnings = (*self.warnings, *filter(None, [output.rstrip()]))
        return replace(self, shards=replace(self.shards, steps=steps), warnings=warnings)


def collect_objects(
    passes: Sequence[CompilePass], parts: Sequence[PassOutput]
) -> list[Mapping[Target, UnitObjects]]:
    """Return the objects of each pass by target, cached or to be compiled."""
    made = {part.name: part.objects for part in parts}
    return [{**one.cached_objects, **made.get(one.folder, {})} for one in passes]


def group_by_target(
    targets: Sequence[Target], made: Iterable[Mapping[Target, Path | None]]
) -> dict[Target, tuple[Path, ...]]:
    """Return the files of each target, in the order of the passes."""
    files: dict[Target, tuple[Path, ...]] = dict.fromkeys(targets, ())
    for each in made:
        for target, path in each.items():
            # A target without relocatable code has no second object.
            if path is not None:
                files[target] += (path,)
    return files
