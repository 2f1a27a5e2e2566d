"""Steps that compile a source once for the host, and to one object per target.

In: the transcript (the parsed output of ``nvcc --dryrun``) of one fat compilation; out:
`TargetObjects`. The host object is compiled with an empty container instead of nvcc's container of
all images, so it waits for no ptxas. Each target's object is a copy of that host object: objcopy
replaces its ``.nv_fatbin`` section by a container that has only the target's image.

Relocatable device code (``-rdc=true``) is in ``__nv_relfatbin``, and is replaced there. nvlink
makes SASS of it before the host link, so the library doesn't need that section: the host linker
gets the host object itself. For PTX the driver links at run time, so the section stays.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.errors import TranscriptError
from archsplit.nvcc.dryrun import NvccStep, StepKind
from archsplit.nvcc.step_order import without_module_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.nvcc.dryrun import Transcript

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetObjects:
    """The steps that make one source's objects.

    Attributes:
        steps: in an order that is valid for a serial run.
        objects: the host linker's input by target; the same file for all targets of a source
            without device code.
        relocatable: the device link's input by target; empty without relocatable device code.
    """

    steps: tuple[NvccStep, ...]
    objects: Mapping[Target, Path]
    relocatable: Mapping[Target, Path]


def source_module_id(*, package: str, source: str) -> str:
    """Return a module id, unique in a library and the same on all machines.

    nvcc's own module id contains a checksum of the absolute path, which differs between machines.
    The id becomes part of C++ names, so it has only letters, digits and underscores.
    """
    digest = hashlib.sha256(f"{package}\0{source}".encode()).hexdigest()[:16]
    return f"_{digest}_{re.sub(r'[^0-9A-Za-z]', '_', source)}"


def per_target_steps(
    transcript: Transcript, targets: Sequence[Target], *, folder: Path, objcopy: Path
) -> TargetObjects:
    """Plan one object for each of ``targets``.

    Args:
        transcript: of the fat compilation, for these targets and perhaps more.
        targets: the targets to build now.
        folder: the private folder of this source.
        objcopy: GNU binutils' program.

    Raises:
        TranscriptError: a target has no image in the transcript, or the transcript has no source or
            several.
    """
    host = _single_step(transcript.steps, StepKind.HOST_COMPILE)
    (host_object,) = host.writes
    if transcript.module_id_file is None:
        objects = dict.fromkeys(targets, host_object)
        return TargetObjects(steps=(host,), objects=objects, relocatable={})
    fatbinary = _single_step(transcript.steps, StepKind.FATBINARY)
    # archsplit sets the module id itself, so cicc needn't wait for the one from cudafe++.
    renamed = (without_module_id(step, transcript.module_id_files) for step in transcript.steps)
    steps = [step for step in renamed if step.kind is not StepKind.FATBINARY]
    steps.append(_empty_container(fatbinary))
    per_target = {}
    for target in targets:
        container, replacement = _replace_section(
            transcript, target, fatbinary, host_object=host_object, folder=folder, objcopy=objcopy
        )
        steps += [container, replacement]
        (per_target[target],) = replacement.writes
    needed = _needed_steps(steps, [*per_target.values(), host_object])
    if not _is_relocatable(fatbinary):
        return TargetObjects(steps=needed, objects=per_target, relocatable={})
    host_inputs = {
        target: host_object if target.kind is CodeKind.SASS else path
        for target, path in per_target.items()
    }
    return TargetObjects(steps=needed, objects=host_inputs, relocatable=per_target)


def _single_step(steps: Iterable[NvccStep], kind: StepKind) -> NvccStep:
    matches = [step for step in steps if step.kind is kind]
    if len(matches) != 1:
        raise TranscriptError(
            f"nvcc --dryrun printed {len(matches)} steps of the kind {kind.value}, expected one",
            hint="give each source as a file of its own",
        )
    return matches[0]


def _other_options(fatbinary: NvccStep) -> tuple[str, ...]:
    replaced = ("--image", "--create=", "--embedded-fatbin=")
    return tuple(word for word in fatbinary.argv if not word.startswith(replaced))


def _is_relocatable(fatbinary: NvccStep) -> bool:
    return "--device-c" in fatbinary.argv


def _empty_container(fatbinary: NvccStep) -> NvccStep:
    # Without --image options fatbinary writes an empty container, and the C file that includes it.
    container, embedded = fatbinary.writes
    argv = (*_other_options(fatbinary), f"--create={container}", f"--embedded-fatbin={embedded}")
    return NvccStep(kind=StepKind.FATBINARY, argv=argv, reads=(), writes=(container, embedded))


def _replace_section(
    transcript: Transcript,
    target: Target,
    fatbinary: NvccStep,
    *,
    host_object: Path,
    folder: Path,
    objcopy: Path,
) -> tuple[NvccStep, NvccStep]:
    image = transcript.images.get(str(target))
    if image is None:
        raise TranscriptError(f"nvcc --dryrun printed no image for {target}")
    argument = next(word for word in fatbinary.argv if word.endswith(f",file={image}"))
    container, result = folder / f"{target}.fatbin", folder / f"{target}.o"
    container_step = NvccStep(
        kind=StepKind.FATBINARY,
        argv=(*_other_options(fatbinary), f"--create={container}", argument),
        reads=(image,),
        writes=(container,),
        target=str(target),
    )
    name = "__nv_relfatbin" if _is_relocatable(fatbinary) else ".nv_fatbin"
    section = f"--update-section={name}={container}"
    replacement = NvccStep(
        kind=StepKind.EXCHANGE,
        argv=(str(objcopy), section, str(host_object), str(result)),
        reads=(container, host_object),
        writes=(result,),
        target=str(target),
    )
    return container_step, replacement


def _needed_steps(steps: Sequence[NvccStep], wanted: Iterable[Path]) -> tuple[NvccStep, ...]:
    """Return the steps that ``wanted`` depends on, and the checks of their outputs."""
    producer = {path: step for step in steps for path in step.writes}
    kept: set[int] = set()
    files = list(wanted)
    while files:
        step = producer.get(files.pop())
        if step is not None and id(step) not in kept:
            kept.add(id(step))
            files.extend(step.reads)
    # A step without outputs only checks its inputs, as ptxas does for PTX.
    available = {path for step in steps if id(step) in kept for path in step.writes}
    checks = {id(step) for step in steps if not step.writes and available.issuperset(step.reads)}
    return tuple(step for step in steps if id(step) in kept | checks)
