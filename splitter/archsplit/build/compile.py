"""Plan of one object per source and target, and a check of host objects.

In: the sources of a recipe, the targets, and the object cache. Out: an `ObjectPlan` with the steps
that are left to run. For each source nvcc prints its commands (``--dryrun``), and the host's
compiler lists the included files; nothing is compiled here. Sources whose objects are in the cache
need no step: `ObjectPlanner` puts the objects into the build's folder.

The sources are compiled with ``-fvisibility=hidden``: only marked functions can be exported. A
missing mark would be an error only after the link of all targets. So the object of each source is
read right after its host compile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.build.context import DRYRUN_SECONDS
from archsplit.compiler.object_cache import (
    CompilePass,
    PassOutput,
    SourceUnit,
    collect_objects,
    group_by_target,
)
from archsplit.compiler.wrapper_graph import step_from_nvcc
from archsplit.errors import DiskFullError, OutputError, RecipeError, StepError, ToolFailedError
from archsplit.formats.elf import Elf, SectionType
from archsplit.formats.elf_dynamic import section_symbols
from archsplit.formats.reader import open_file
from archsplit.nvcc.depfile import depfile_command, parse_depfile
from archsplit.nvcc.dryrun import StepKind, module_id_files, parse_dryrun, unusable_character
from archsplit.nvcc.per_target import per_target_steps, source_module_id
from archsplit.nvcc.recipe_commands import dryrun_command
from archsplit.recipe.inputs import find_included_files, find_unlisted_inputs, relative_name
from archsplit.scheduler.runner import NO_SPACE_HINT, has_no_space
from archsplit.system.parallel import ThreadPool
from archsplit.system.process import run_checked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import PurePosixPath

    from archsplit.arch.target import Target
    from archsplit.build.context import BuildContext
    from archsplit.compiler.object_cache import ObjectCache
    from archsplit.nvcc.dryrun import NvccStep, Transcript
    from archsplit.recipe.inputs import ReadIncludes
    from archsplit.scheduler.graph import Step
    from archsplit.system.process import Runner

_LOCAL, _HIDDEN = 0, {1, 2}  # STB_LOCAL; STV_INTERNAL and STV_HIDDEN
_MANGLED = re.compile(r"_Z(\d+)(\w+)")

VISIBILITY_HINT = (
    'declare each with __attribute__((visibility("default"))); or write host-flags ='
    ' ["-fvisibility=default"] in [compile], or for these sources in a [[source.group]]: in'
    " any case, the library exports the [interface] symbols only"
)
LINKAGE_HINT = 'declare each with extern "C": C++ gives it another, mangled name in the library'


_ANY_FOLDER = Path("/private")
_UNLISTED_HINT = (
    "write the file's name in the #include, or put it into a folder of source.include: the build id"
    " and the source distribution have only files that the recipe and its sources name"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlan:
    """Plan for the objects of a library.

    Attributes:
        steps: the commands to run.
        texts: the content of files that must exist before the steps run.
        files: the objects of each target, one per source, in the order of the sources.
        relocatable: the inputs of each target's device link; empty without such a link.
        units: the sources that are compiled, if the cache can store them.
        warnings: the warnings of ``nvcc --dryrun`` and of the preprocessor.
    """

    steps: tuple[Step, ...]
    texts: Mapping[Path, str]
    files: Mapping[Target, tuple[Path, ...]]
    relocatable: Mapping[Target, tuple[Path, ...]]
    units: tuple[SourceUnit, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPlanner:
    """Planner of a recipe's objects.

    Attributes:
        cache: objects of earlier builds; None to compile every source.
        keeps_text: True to use the preprocessed text of the planning; False to leave that step to
            the graph, because a text of megabytes would have to be moved.
    """

    context: BuildContext
    runner: Runner
    cache: ObjectCache | None = None
    keeps_text: bool = True
    # Sources of a recipe include the same headers.
    _includes: ReadIncludes = field(default_factory=dict)

    def plan(self, targets: Sequence[Target], *, jobs: int) -> ObjectPlan:
        """Plan the objects of ``targets``; ``jobs`` sources are read at a time.

        Raises:
            OutputError: nvcc can't work with the path of the private folder.
            RecipeError: nvcc can't work with the path of the recipe; or a source includes a file
                that the recipe doesn't list.
            ToolFailedError: nvcc refuses the flags.
            TranscriptError: ``nvcc --dryrun`` has a command that archsplit doesn't know.
        """
        if targets:
            self._check_paths()
        with ThreadPool(max_workers=jobs) as pool:
            passes = list(pool.map(self._restore, self._passes(targets) if targets else ()))
            uncached = [one for one in passes if one.missing]
            planned = list(pool.map(self._plan_pass, uncached))
            outputs = list(pool.map(self._list_includes, planned))
        self._check_listed(passes, outputs)
        made = collect_objects(passes, outputs)
        steps = [step for part in outputs for step in self._steps(part)]
        messages = [*(one.cached.output for one in passes), *(part.warnings for part in outputs)]
        return ObjectPlan(
            steps=tuple(sorted(steps, key=self._turn)),
            texts={path: text for part in outputs for path, text in part.texts.items()},
            files=group_by_target(targets, [{t: o.linked for t, o in one.items()} for one in made]),
            relocatable=group_by_target(
                targets, [{t: o.relocatable for t, o in one.items()} for one in made]
            ),
            units=tuple(part.unit for part in outputs if part.unit is not None),
            warnings=tuple(dict.fromkeys(line for lines in messages for line in lines)),
        )

    def _check_paths(self) -> None:
        folder, root = str(self.context.folder), str(self.context.recipe.root)
        if character := unusable_character(folder):
            hint = f"set TMPDIR to a folder without {character!r} in its path"
            raise OutputError(f"nvcc can't work in {folder}", hint=hint)
        if character := next((character for character in "$`" if character in root), None):
            hint = f"move it to a folder without {character!r} in its path"
            raise RecipeError(f"nvcc can't compile what is in {root}", hint=hint)

    def _passes(self, targets: Sequence[Target]) -> Iterator[CompilePass]:
        # One pass over all targets of the release, also of those that are not built now, keeps
        # __CUDA_ARCH_LIST__ the same: CUB puts it into the names of its namespaces.
        recipe = self.context.recipe
        for number, source in enumerate(recipe.source.files):
            name = f"{number:03}-{source.stem}"
            passes = {name: (recipe.release, tuple(targets))}
            # Without a common host pass each target has commands of its own.
            if recipe.compile.host_pass != "once":
                passes = {f"{name}-{target}": ((target,), (target,)) for target in targets}
            for folder, (release, own) in passes.items():
                yield CompilePass(source=source, folder=folder, release=release, targets=own)

    def _restore(self, one: CompilePass) -> CompilePass:
        """Restore the cached objects of a pass; return the pass with them."""
        folder = self.context.folder / one.folder
        folder.mkdir()
        if self.cache is None:
            return one
        # A fixed folder: the private one has another name in each build, and would change the key.
        argv = (*self._dryrun(one, _ANY_FOLDER), str(self.context.host.objcopy))
        name = self._unit_name(one)
        request = self.cache.request(argv, nvcc=self.context.toolkit.nvcc, unit=name)
        hit = self.cache.restore(request, [*map(str, one.targets)], folder)
        return replace(one, cached=hit, request=request)

    def _unit_name(self, one: CompilePass) -> str:
        return source_module_id(package=self.context.recipe.project.name, source=str(one.source))

    def _plan_pass(self, one: CompilePass) -> PassOutput:
        folder = self.context.folder / one.folder
        transcript = self._transcript(one, folder)
        texts = {}
        if transcript.module_id_file is not None:
            # nvcc's own module id has a checksum of the absolute path.
            texts[transcript.module_id_file] = self._unit_name(one)
        shards = per_target_steps(
            transcript, one.missing, folder=folder, objcopy=self.context.host.objcopy
        )
        environment = transcript.environment
        depfile = folder / "listing.d"
        argv = depfile_command(transcript, depfile)
        depfile_step = self.context.command(argv, environment=environment, timeout=DRYRUN_SECONDS)
        return PassOutput(
            compile_pass=one,
            shards=shards,
            host_step=transcript.host_step,
            depfile_step=depfile_step,
            depfile=depfile,
            environment=environment,
            texts=texts,
            warnings=transcript.diagnostics,
        )

    def _dryrun(self, one: CompilePass, folder: Path) -> tuple[str, ...]:
        return dryrun_command(
            self.context.toolkit,
            self.context.options_for(one.source),
            source=one.source,
            targets=one.release,
            folder=folder,
        )

    def _transcript(self, one: CompilePass, folder: Path) -> Transcript:
        command = self.context.command(self._dryrun(one, folder), timeout=DRYRUN_SECONDS)
        try:
            reply = run_checked(self.runner, command, what="nvcc --dryrun").stderr
        except ToolFailedError as error:
            # nvcc doesn't say why its first preprocessing failed.
            if has_no_space(folder):
                raise DiskFullError(error.message, hint=NO_SPACE_HINT) from error
            raise
        return parse_dryrun(reply, folder=folder, cwd=self.context.recipe.root)

    def _list_includes(self, part: PassOutput) -> PassOutput:
        """List the included files of a source with the host's compiler.

        The output of the preprocessor is kept: that step of the build is not run again.
        """
        done = self.runner.run(part.depfile_step)
        if done.returncode != 0:
            # The build's own step fails in the same way, and that is where its error belongs.
            return replace(part, is_unreadable=True)
        includes = parse_depfile(part.depfile.read_text(errors="surrogateescape"))
        return replace(
            part.without_preprocessing(done.stderr) if self.keeps_text else part,
            includes=includes,
            unit=self._unit(part, includes, done.stderr),
        )

    def _check_listed(self, passes: Sequence[CompilePass], outputs: Sequence[PassOutput]) -> None:
        faults = [text for one in passes for text in self._faults(one.source, one.cached.includes)]
        faults += [text for part in outputs for text in self._faults(part.source, part.includes)]
        # All sources are read first, so that one run shows every unlisted file.
        if faults:
            raise RecipeError("\n".join(dict.fromkeys(faults)), hint=_UNLISTED_HINT)

    def _faults(self, source: PurePosixPath, includes: Iterable[str]) -> Iterator[str]:
        recipe, toolkit = self.context.recipe, self.context.toolkit
        for fault in find_unlisted_inputs(recipe, map(Path, includes), toolkit.root):
            yield f"{source}: {fault}"

    def _unit(self, part: PassOutput, includes: tuple[str, ...], text: str) -> SourceUnit | None:
        # A build without a cache stores nothing.
        if part.compile_pass.request is None:
            return None
        read = [step for step in part.shards.steps if step.kind is StepKind.PREPROCESS]
        return SourceUnit(
            name=part.name,
            source=self.context.recipe.root / part.source,
            request=part.compile_pass.request,
            objects={str(target): made for target, made in part.objects.items()},
            host_step=part.host_step.argv,
            depfile=part.depfile,
            texts=tuple(path for step in read for path in step.writes),
            tools=(str(self.context.host.objcopy),),
            environment={**self.context.environment, **part.environment},
            includes=includes,
            output="\n".join(filter(None, [*part.warnings, text])),
        )

    def _steps(self, part: PassOutput) -> Iterator[Step]:
        sources = self._source_files(part)
        symbols = self.context.recipe.interface.symbols
        for number, step in enumerate(part.shards.steps):
            kind = f"{step.kind.value}{_for(step)}"
            command = self.context.command(step.argv, environment=part.environment)
            name = f"{part.name}/{number:02} {kind}"
            is_host = step.kind is StepKind.HOST_COMPILE
            yield step_from_nvcc(
                step,
                command,
                name=name,
                key=f"{part.name} {kind}",
                inputs=self._inputs(step, sources),
                runs_first=part.is_unreadable and step.argv == part.host_step.argv,
                check=partial(check_visibility, step.writes[0], part.source, symbols)
                if is_host
                else None,
                unit=part.name,
            )

    def _source_files(self, part: PassOutput) -> tuple[Path, ...]:
        """Return the recipe's files that a source may include, itself among them."""
        recipe = self.context.recipe
        found = set(
            find_included_files(
                recipe.root,
                [part.source],
                recipe.source.include_of(part.source),
                known=self._includes,
            )
        )
        # A macro's name leads to files that the text doesn't show; the compiler has listed them.
        includes = (relative_name(recipe.root, recipe.root / name) for name in part.includes)
        found.update(name for name in includes if name is not None)
        return tuple(recipe.root / name for name in sorted(found))

    def _inputs(self, step: NvccStep, sources: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the files that a step reads and no step writes, but for the toolkit's."""
        # Only the first steps of a source read it: the others have the preprocessed text.
        reads_source = step.kind in {StepKind.PREPROCESS, StepKind.HOST_COMPILE} and not step.reads
        ids = (self.context.recipe.root / name for name in module_id_files(step.argv))
        return (*ids, *(sources if reads_source else ()))

    def _turn(self, step: Step) -> int:
        """Return the turn of a step in the graph: a failure stops what comes later."""
        if step.runs_first:
            return 0
        return 2 if any(path.is_relative_to(self.context.folder) for path in step.reads) else 1


def _for(step: NvccStep) -> str:
    return f" {step.target}" if step.target else ""


def check_visibility(path: Path, source: PurePosixPath, symbols: Sequence[str]) -> None:
    """Check that the object of a source defines the interface's symbols with default visibility.

    Args:
        path: the object; it may define some of the symbols, or none.
        source: for the message.
        symbols: the functions of the interface.

    Raises:
        StepError: a symbol is hidden, or has the name of a C++ function.
        BinaryFormatError: the object is damaged.
    """
    wanted, hidden, mangled = set(symbols), [], []
    for name, is_hidden in _defined(path):
        if name in wanted and is_hidden:
            hidden.append(name)
        # A mangled name shows that extern "C" is missing.
        elif (plain := _plain_name(name)) in wanted:
            mangled.append(plain)
    if hidden:
        raise StepError(
            f"{source}: {', '.join(sorted(hidden))} can't be exported: the visibility is hidden",
            hint=VISIBILITY_HINT,
        )
    if mangled:
        raise StepError(
            f"{source}: {', '.join(sorted(set(mangled)))} can't be exported: C++ mangles the name",
            hint=LINKAGE_HINT,
        )


def _defined(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield each symbol that an object defines for others, and True if hidden."""
    elf = Elf(open_file(path))
    for section in elf.sections():
        if section.type == SectionType.SYMBOLS:
            for symbol in section_symbols(elf, section):
                # Section 0 is an undefined symbol: another object defines it.
                if symbol.section != 0 and symbol.binding != _LOCAL:
                    yield symbol.name, symbol.other & 3 in _HIDDEN


def _plain_name(name: str) -> str:
    """Return the name of a mangled function outside of namespaces; "" for other symbols."""
    match = _MANGLED.match(name)
    return match[2][: int(match[1])] if match else ""
