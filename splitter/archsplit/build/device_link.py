"""From relocatable device code to the plan of one device link per target.

A target's device link resolves what its sources use of each other's device code. It makes one more
object for the host's linker: the linked code, and what registers it with all the sources' kernels.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.compiler.nvcc_task import step_from_nvcc
from archsplit.nvcc.dryrun import parse_dryrun
from archsplit.nvcc.options import device_link_command
from archsplit.nvcc.steps import NvccStep, StepKind
from archsplit.system.process import run_checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.build.context import BuildContext
    from archsplit.nvcc.steps import Transcript
    from archsplit.scheduler.graph import Step
    from archsplit.system.process import Runner

_ASK_SECONDS = 120.0
_DEVICE_RUNTIME = "libcudadevrt.a"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLinks:
    """How the device links come about.

    Attributes:
        steps: what must run.
        files: what the host's linker takes for each target beside the sources' objects.
        warnings: what nvcc said when it was asked for its plan.
    """

    steps: tuple[Step, ...]
    files: Mapping[Target, tuple[Path, ...]]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLinker:
    """Turns each target's relocatable objects into the plan of a device link, by asking nvcc."""

    site: BuildContext
    runner: Runner

    def plan(self, objects: Mapping[Target, tuple[Path, ...]], *, jobs: int) -> DeviceLinks:
        """Ask nvcc about every target that has relocatable objects, ``jobs`` at a time.

        Raises:
            ToolFailedError: nvcc refuses the flags.
            TranscriptError: nvcc would do something that archsplit doesn't know.
        """
        wanted = {target: paths for target, paths in objects.items() if paths}
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            links = list(pool.map(self._link, wanted, wanted.values()))
        machine_code = [link for link in links if link.target.kind is CodeKind.SASS]
        runtime = self.site.folder / _DEVICE_RUNTIME
        steps = list(self._emptied_runtime(runtime)) if machine_code else []
        files = {}
        for link in links:
            steps += self._steps(link)
            files[link.target] = (link.object, *((runtime,) if link in machine_code else ()))
        warnings = dict.fromkeys(line for link in links for line in link.transcript.diagnostics)
        return DeviceLinks(steps=tuple(steps), files=files, warnings=tuple(warnings))

    def _link(self, target: Target, objects: tuple[Path, ...]) -> _Link:
        folder = self.site.folder / f"device-link-{target}"
        folder.mkdir()
        argv = device_link_command(
            self.site.toolkit,
            self.site.compile_options,
            objects=objects,
            libraries=self._libraries(),
            target=target,
            folder=folder,
        )
        done = run_checked(
            self.runner, self.site.command(argv, timeout=_ASK_SECONDS), what="nvcc --dryrun"
        )
        transcript = parse_dryrun(done.stderr, folder=folder, cwd=self.site.recipe.root)
        (made,) = transcript.steps[-1].writes
        return _Link(target=target, objects=objects, transcript=transcript, object=made)

    def _libraries(self) -> tuple[str, ...]:
        link = self.site.recipe.link
        folders = (f"-L{folder}" for folder in link.library_folders)
        return (*folders, *(f"-l{name}" for name in link.libraries))

    def _steps(self, link: _Link) -> Iterator[Step]:
        for number, planned in enumerate(link.transcript.steps):
            step = planned
            if step.kind is StepKind.NVLINK:
                step = replace(step, reads=(*step.reads, *link.objects))
                if link.target.kind is CodeKind.PTX:
                    step = self._registering(step, link)
            name = f"{link.target} device link/{number:02} {step.kind.value}"
            yield self._step(name, step, link.transcript.environment)

    def _registering(self, step: NvccStep, link: _Link) -> NvccStep:
        # All that nvlink makes of PTX is the registration file. For that it compiles the PTX, which
        # takes a minute for a large library, and fails from compute_100 on ("specified arch exceeds
        # buffer length", CUDA 13.0). For a target that no object has code for, it writes the same
        # file at once.
        oldest = min(one for one in self.site.toolkit.targets if one.kind is CodeKind.SASS)
        nothing = step.writes[0].with_suffix(".cubin")
        swapped = (
            word if word != f"--arch={link.target}" else f"--arch={oldest}" for word in step.argv
        )
        argv = (*swapped, "-suppress-arch-warning", "-o", str(nothing))
        return replace(step, argv=argv, writes=(*step.writes, nothing))

    def _emptied_runtime(self, runtime: Path) -> Iterator[Step]:
        # The device link takes what it needs from CUDA's device runtime. The host's linker needs
        # that library for its registration, but not its code for a dozen targets.
        container = runtime.with_suffix(".fatbin")
        fatbinary = self.site.toolkit.root / "bin" / "fatbinary"
        empty = NvccStep(
            kind=StepKind.FATBINARY,
            argv=(str(fatbinary), "-64", "--device-c", f"--create={container}"),
            reads=(),
            writes=(container,),
        )
        section = f"--update-section=__nv_relfatbin={container}"
        full = self.site.toolkit.library_folder / _DEVICE_RUNTIME
        exchange = NvccStep(
            kind=StepKind.EXCHANGE,
            argv=(str(self.site.host.objcopy), section, str(full), str(runtime)),
            reads=(container,),
            writes=(runtime,),
        )
        for step in (empty, exchange):
            yield self._step(f"device runtime/{step.kind.value}", step, {})

    def _step(self, name: str, step: NvccStep, environment: Mapping[str, str]) -> Step:
        command = self.site.command(step.argv, environment=environment)
        return step_from_nvcc(step, command, name=name, key=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Link:
    """What came of asking for one target."""

    target: Target
    objects: tuple[Path, ...]
    transcript: Transcript
    object: Path
