"""Plan of one library per target, and of the device links before it.

In: the objects of each target. Out: the steps that link them, and the path of each library. A
library has a descriptor: an ELF note that names the build and the target, made by the assembler.

With relocatable device code, a device link comes first. It resolves references between the device
code of different sources. It makes one more object for the host's linker: the linked device code,
and the code that registers it together with the kernels of all sources.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.build.compile import VISIBILITY_HINT
from archsplit.build.context import DRYRUN_SECONDS
from archsplit.build.provenance import STATIC_DEVICE_RUNTIME
from archsplit.compiler.wrapper_graph import step_from_nvcc
from archsplit.devicecode.kernels import device_runtime_calls
from archsplit.devicecode.registered import read_library
from archsplit.errors import RecipeError, StepError
from archsplit.formats.descriptor import NOTE_SECTION, Descriptor, Shape, encode_note
from archsplit.nvcc.cuda_libraries import CUDA_WHEELS
from archsplit.nvcc.dryrun import NvccStep, StepKind, parse_dryrun
from archsplit.nvcc.recipe_commands import device_link_command
from archsplit.release.device_checks import plugin_faults
from archsplit.scheduler.graph import Step
from archsplit.system.parallel import ThreadPool
from archsplit.system.process import run_checked
from archsplit.wheels.filename import plugin_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from archsplit.arch.target import Target
    from archsplit.build.context import BuildContext
    from archsplit.nvcc.dryrun import Transcript
    from archsplit.release.identity import Identity
    from archsplit.system.process import Runner

_RUNTIME = ("-lcudart_static", "-lrt", "-lpthread", "-ldl")
_ROW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPlan:
    """Plan for the libraries.

    Attributes:
        steps: the commands to run.
        texts: the content of files that must exist before the steps run.
        files: the library of each target.
    """

    steps: tuple[Step, ...]
    texts: Mapping[Path, str]
    files: Mapping[Target, Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPlanner:
    """Planner of the libraries of a build; each belongs to the core of ``identity``."""

    context: BuildContext
    identity: Identity

    def plan(self, objects: Mapping[Target, tuple[Path, ...]]) -> LibraryPlan:
        """Plan one shared library per target; only the recipe's symbols are visible in it."""
        exports = self.context.folder / "exports.map"
        texts = {exports: self._version_script()}
        steps: list[Step] = []
        files = {}
        for target, paths in objects.items():
            note = self.context.folder / f"descriptor.{target}.s"
            cuda = self.context.toolkit.cuda_version
            descriptor = self.identity.descriptor((target,), cuda=cuda, shape=Shape.LIBRARY)
            texts[note] = _note_source(descriptor)
            files[target] = self.context.folder / f"{target}-{self.context.recipe.link.library}"
            steps += self._link(target, note, paths, exports, files[target])
        return LibraryPlan(steps=tuple(steps), texts=texts, files=files)

    def _version_script(self) -> str:
        symbols = "".join(f"    {symbol};\n" for symbol in self.context.recipe.interface.symbols)
        return f"{{\n  global:\n{symbols}  local:\n    *;\n}};\n"

    def _link(
        self, target: Target, note: Path, objects: tuple[Path, ...], exports: Path, library: Path
    ) -> Iterator[Step]:
        note_object = note.with_suffix(".o")
        assemble = (str(self.context.host.compiler), "-c", str(note), "-o", str(note_object))
        yield self._step(f"{target} descriptor", assemble, (note,), note_object, weight=0.1)
        inputs = (*objects, note_object)
        argv = (*self._flags(target, exports), *map(str, inputs), *self._libraries())
        link = (str(self.context.host.compiler), *argv, "-o", str(library))
        reads = (*inputs, exports, *_user_libraries(self.context))
        yield self._step(f"{target} link", link, reads, library, weight=1.0)

    def _flags(self, target: Target, exports: Path) -> tuple[str, ...]:
        # ld.so knows libraries by their SONAME across packages: each plugin has one of its own.
        soname = f"{self.context.recipe.project.name}.{target}.{self.context.recipe.link.library}"
        # Undefined symbols would show only on the user's machine, when the plugin is opened.
        linker = ("--no-undefined", "--strip-all", "--build-id=sha1", f"--version-script={exports}")
        return (
            "-shared",
            f"-Wl,-soname={soname}",
            *(f"-Wl,{option}" for option in (*linker, *self._search_path(target))),
            "-Wl,-z,relro",
            "-Wl,-z,now",
        )

    def _search_path(self, target: Target) -> tuple[str, ...]:
        """Return the options by which a plugin finds the libraries of NVIDIA's wheels."""
        recipe, used = self.context.recipe, self.context.cuda_libraries
        file = plugin_path(recipe.python.package, str(target), recipe.link.library)
        top = "/".join([".."] * file.count("/"))
        folders = dict.fromkeys(f"$ORIGIN/{top}/{library.place}" for library in used)
        # The libraries need each other, by names that are no use to the linker.
        here = dict.fromkeys(f"-rpath-link,{library.file.parent}" for library in used)
        return (*(f"-rpath,{folder}" for folder in folders), *here)

    def _libraries(self) -> tuple[str, ...]:
        return (
            *(f"-L{folder}" for folder in self.context.recipe.link.library_folders),
            f"-L{self.context.toolkit.library_folder}",
            *(f"-l{name}" for name in self.context.recipe.link.libraries),
            *(str(library.file) for library in self.context.cuda_libraries),
            *_RUNTIME,
        )

    def _step(
        self,
        name: str,
        argv: tuple[str, ...],
        reads: tuple[Path, ...],
        writes: Path,
        *,
        weight: float,
    ) -> Step:
        command = self.context.command(argv)
        return Step(name=name, command=command, reads=reads, writes=(writes,), weight=weight)


def check_link_libraries(context: BuildContext, runner: Runner) -> None:
    """Link nothing with the recipe's libraries, to find missing ones before all compiles.

    Raises:
        RecipeError: the linker doesn't find a library; the message has its lines.
    """
    link = context.recipe.link
    if not link.libraries:
        return
    names = (f"-l{name}" for name in link.libraries)
    folders = (f"-L{folder}" for folder in (*link.library_folders, context.toolkit.library_folder))
    out = str(context.folder / "no-sources.so")
    compiler = str(context.host.compiler)
    done = runner.run(context.command((compiler, "-shared", *folders, *names, "-o", out)))
    if done.returncode == 0:
        return
    missing = [name for name in link.libraries if f"-l{name}:" in f"{done.stderr}:"]
    of_cuda = [name for name in missing if name in CUDA_WHEELS]
    hint = "install the libraries' development files, or name their folder in link.library-folders"
    if of_cuda:
        hint = f"write {', '.join(of_cuda)} in link.cuda-libraries: NVIDIA's wheels have them"
    raise RecipeError(f"link.libraries: the linker failed\n{done.tail()}", hint=hint)


def _user_libraries(context: BuildContext) -> tuple[Path, ...]:
    """Return the files of the recipe that its libraries' names may stand for."""
    link = context.recipe.link
    # Linker scripts and links among them name others, so the whole folders count.
    return tuple(
        context.recipe.root / name
        for name in context.recipe.input_files
        if any(name.is_relative_to(folder) for folder in link.library_folders)
    )


def check_library(
    path: Path, target: Target, *, identity: Identity, symbols: tuple[str, ...]
) -> None:
    """Compare a linked library with its plan.

    Raises:
        StepError: the library differs from the plan; lists all differences.
    """
    library = read_library(path)
    faults = [one.text for one in plugin_faults(library, target, identity)]
    faults += [f"doesn't define {name}" for name in sorted(set(symbols) - library.exports)]
    faults += [f"exports {name}" for name in sorted(library.exports - set(symbols))]
    # Before the other faults: a driver reports it only as a failed link, at the first launch.
    if calls := device_runtime_calls(path):
        raise StepError(
            f"the library for {target} calls {', '.join(sorted(calls))} of CUDA's device"
            " runtime, without which drivers link its PTX",
            hint=f"take {target} out of targets.ptx, or the kernels that start kernels out of the"
            " sources",
        )
    if faults:
        raise StepError(
            f"the library for {target} is not as planned:\n  " + "\n  ".join(faults),
            hint="each of [interface] symbols must be defined by a source, and visible:"
            f" {VISIBILITY_HINT}",
        )


def _note_source(descriptor: Descriptor) -> str:
    """Return the assembler source of the descriptor's note; the same for every machine type."""
    note = encode_note(descriptor)
    rows = [note[at : at + _ROW] for at in range(0, len(note), _ROW)]
    lines = [
        f'    .section {NOTE_SECTION}, "a", %note',
        "    .p2align 2",
        *(f"    .byte {', '.join(map(str, row))}" for row in rows),
        '    .section .note.GNU-stack, "", %progbits',
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLinkPlan:
    """Plan for the device links.

    Attributes:
        steps: the commands to run.
        files: the inputs of the host's linker for each target, besides the objects of the sources.
        warnings: the warnings of ``nvcc --dryrun``.
    """

    steps: tuple[Step, ...]
    files: Mapping[Target, tuple[Path, ...]]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLinkPlanner:
    """Planner of the device links of a build."""

    context: BuildContext
    runner: Runner

    def plan(self, objects: Mapping[Target, tuple[Path, ...]], *, jobs: int) -> DeviceLinkPlan:
        """Plan a device link for each target with relocatable objects, ``jobs`` at a time.

        Raises:
            ToolFailedError: nvcc refuses the flags.
            TranscriptError: ``nvcc --dryrun`` has a command that archsplit doesn't know.
        """
        wanted = {target: paths for target, paths in objects.items() if paths}
        with ThreadPool(max_workers=jobs) as pool:
            links = list(pool.map(self._link, wanted, wanted.values()))
        machine_code = [link for link in links if link.target.kind is CodeKind.SASS]
        runtime = self.context.folder / STATIC_DEVICE_RUNTIME
        # PTX is linked by the driver, which has that library itself.
        steps = list(self._strip_runtime(runtime)) if machine_code else []
        files = {}
        for link in links:
            steps += self._steps(link)
            files[link.target] = (link.object, *((runtime,) if link in machine_code else ()))
        warnings = dict.fromkeys(line for link in links for line in link.transcript.diagnostics)
        return DeviceLinkPlan(steps=tuple(steps), files=files, warnings=tuple(warnings))

    def _link(self, target: Target, objects: tuple[Path, ...]) -> _Link:
        folder = self.context.folder / f"device-link-{target}"
        folder.mkdir()
        argv = device_link_command(
            self.context.toolkit,
            self.context.compile_options,
            objects=objects,
            libraries=self._libraries(),
            target=target,
            folder=folder,
        )
        done = run_checked(
            self.runner, self.context.command(argv, timeout=DRYRUN_SECONDS), what="nvcc --dryrun"
        )
        transcript = parse_dryrun(done.stderr, folder=folder, cwd=self.context.recipe.root)
        (made,) = transcript.steps[-1].writes
        return _Link(target=target, objects=objects, transcript=transcript, object=made)

    def _libraries(self) -> tuple[str, ...]:
        link = self.context.recipe.link
        folders = (f"-L{folder}" for folder in link.library_folders)
        return (*folders, *(f"-l{name}" for name in link.libraries))

    def _device_libraries(self) -> Iterator[Path]:
        # nvlink takes device code from archives and objects, and follows no linker script.
        link, root = self.context.recipe.link, self.context.recipe.root
        for folder in link.library_folders:
            archives = (root / folder / f"lib{name}.a" for name in link.libraries)
            yield from (path for path in archives if path.is_file())

    def _steps(self, link: _Link) -> Iterator[Step]:
        for number, planned in enumerate(link.transcript.steps):
            step = planned
            # The dry run doesn't list the objects as inputs of nvlink, but they must be complete.
            if step.kind is StepKind.NVLINK:
                reads = (*step.reads, *link.objects, *self._device_libraries())
                step = step._replace(reads=reads, argv=tuple(self._name_libraries(step.argv)))
                if link.target.kind is CodeKind.PTX:
                    step = self._link_ptx(step, link)
            name = f"{link.target} device link/{number:02} {step.kind.value}"
            yield self._step(name, step, link.transcript.environment)

    def _name_libraries(self, argv: Iterable[str]) -> Iterator[str]:
        """Yield nvlink's arguments with the paths of the toolkit's libraries."""
        # nvlink writes the folders that it searches into its result, and so the toolkit's place.
        toolkit = self.context.toolkit
        roots = (toolkit.root, toolkit.root.resolve())
        for word in argv:
            library = toolkit.library_folder / f"lib{word.removeprefix('-l')}.a"
            folder = Path(os.path.normpath(word.removeprefix("-L")))
            if word.startswith("-l") and library.is_file():
                yield str(library)
            elif not (word.startswith("-L") and any(map(folder.is_relative_to, roots))):
                yield word

    def _link_ptx(self, step: NvccStep, link: _Link) -> NvccStep:
        # All that nvlink makes of PTX is the registration file. For that it compiles the PTX, which
        # takes a minute for a large library, and fails from compute_100 on ("specified arch exceeds
        # buffer length", CUDA 13.0). For a target that no object has code for, it writes the same
        # file at once.
        oldest = min(one for one in self.context.toolkit.targets if one.kind is CodeKind.SASS)
        nothing = step.writes[0].with_suffix(".cubin")
        swapped = (
            word if word != f"--arch={link.target}" else f"--arch={oldest}" for word in step.argv
        )
        argv = (*swapped, "-suppress-arch-warning", "-o", str(nothing))
        return step._replace(argv=argv, writes=(*step.writes, nothing))

    def _strip_runtime(self, runtime: Path) -> Iterator[Step]:
        # The device link takes what it needs from CUDA's device runtime. The host's linker needs
        # that library for its registration, but not its code for a dozen targets.
        container = runtime.with_suffix(".fatbin")
        fatbinary = self.context.toolkit.root / "bin" / "fatbinary"
        empty = NvccStep(
            kind=StepKind.FATBINARY,
            argv=(str(fatbinary), "-64", "--device-c", f"--create={container}"),
            reads=(),
            writes=(container,),
        )
        section = f"--update-section=__nv_relfatbin={container}"
        full = self.context.toolkit.library_folder / STATIC_DEVICE_RUNTIME
        exchange = NvccStep(
            kind=StepKind.EXCHANGE,
            argv=(str(self.context.host.objcopy), section, str(full), str(runtime)),
            reads=(container,),
            writes=(runtime,),
        )
        for step in (empty, exchange):
            yield self._step(f"device runtime/{step.kind.value}", step, {})

    def _step(self, name: str, step: NvccStep, environment: Mapping[str, str]) -> Step:
        command = self.context.command(step.argv, environment=environment)
        return step_from_nvcc(step, command, name=name, key=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """Device link of one target, as ``nvcc --dryrun`` plans it."""

    target: Target
    objects: tuple[Path, ...]
    transcript: Transcript
    object: Path
