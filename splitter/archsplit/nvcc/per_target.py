"""Turn one fat compilation into one object per target, with the host pass done once.

The host object is compiled with an empty container where nvcc would put all targets' code, so it
waits for no ptxas. Each target's object is that host object with its ``.nv_fatbin`` section
exchanged for the one container that holds the target's image.

Relocatable device code lies in ``__nv_relfatbin``, and is exchanged there. What the device link has
made machine code of is dead weight in the library, so that the host's linker gets the host object
itself; PTX is linked by the driver, and stays.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind
from archsplit.errors import TranscriptError
from archsplit.nvcc.reorder import without_module_id
from archsplit.nvcc.steps import NvccStep, StepKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from archsplit.arch.target import Target
    from archsplit.nvcc.steps import Transcript

__pure__ = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetObjects:
    """The steps that make one source's objects.

    Attributes:
        steps: in an order in which they could run one by one.
        objects: what the host's linker takes for each target; the same file for all of them where
            there is no device code.
        relocatable: what each target's device link takes; none where there is no device code, or
            none that is relocatable.
    """

    steps: tuple[NvccStep, ...]
    objects: Mapping[Target, Path]
    relocatable: Mapping[Target, Path]


def module_id(*, package: str, source: str) -> str:
    """A name for a translation unit that is unique in a library and says nothing of the machine.

    nvcc's own has a checksum of the absolute path. It becomes part of C++ names, so that it may
    have only letters, digits and underscores.
    """
    digest = hashlib.sha256(f"{package}\0{source}".encode()).hexdigest()[:16]
    return f"_{digest}_{re.sub(r'[^0-9A-Za-z]', '_', source)}"


def per_target_steps(
    transcript: Transcript, targets: Sequence[Target], *, folder: Path, objcopy: Path
) -> TargetObjects:
    """Plan one object for each of ``targets``.

    Args:
        transcript: of the fat compilation, for these targets and perhaps more.
        targets: the ones to build now.
        folder: the private folder of this source.
        objcopy: GNU binutils' program.

    Raises:
        TranscriptError: a target has no image in the transcript, or it is not of one source.
    """
    host = _only(transcript.steps, StepKind.HOST_COMPILE)
    (host_object,) = host.writes
    if transcript.module_id is None:
        objects = dict.fromkeys(targets, host_object)
        return TargetObjects(steps=(host,), objects=objects, relocatable={})
    fatbinary = _only(transcript.steps, StepKind.FATBINARY)
    # With an identifier of our own, cicc need not wait until cudafe++ has made one.
    named = (without_module_id(step, transcript.module_ids) for step in transcript.steps)
    steps = [step for step in named if step.kind is not StepKind.FATBINARY]
    steps.append(_placeholder(fatbinary))
    exchanged = {}
    for target in targets:
        container, exchange = _exchange(
            transcript, target, fatbinary, host_object=host_object, folder=folder, objcopy=objcopy
        )
        steps += [container, exchange]
        (exchanged[target],) = exchange.writes
    needed = _needed(steps, [*exchanged.values(), host_object])
    if not _is_relocatable(fatbinary):
        return TargetObjects(steps=needed, objects=exchanged, relocatable={})
    linked = {
        target: host_object if target.kind is CodeKind.SASS else path
        for target, path in exchanged.items()
    }
    return TargetObjects(steps=needed, objects=linked, relocatable=exchanged)


def _only(steps: Iterable[NvccStep], kind: StepKind) -> NvccStep:
    found = [step for step in steps if step.kind is kind]
    if len(found) != 1:
        raise TranscriptError(
            f"nvcc --dryrun printed {len(found)} steps of the kind {kind.value}, not one",
            hint="give each source as a file of its own",
        )
    return found[0]


def _options(fatbinary: NvccStep) -> tuple[str, ...]:
    ours = ("--image", "--create=", "--embedded-fatbin=")
    return tuple(word for word in fatbinary.argv if not word.startswith(ours))


def _is_relocatable(fatbinary: NvccStep) -> bool:
    return "--device-c" in fatbinary.argv


def _placeholder(fatbinary: NvccStep) -> NvccStep:
    # fatbinary without images makes an empty container, and the C file that registers it.
    container, embedded = fatbinary.writes
    argv = (*_options(fatbinary), f"--create={container}", f"--embedded-fatbin={embedded}")
    return NvccStep(kind=StepKind.FATBINARY, argv=argv, reads=(), writes=(container, embedded))


def _exchange(
    transcript: Transcript,
    target: Target,
    fatbinary: NvccStep,
    *,
    host_object: Path,
    folder: Path,
    objcopy: Path,
) -> tuple[NvccStep, NvccStep]:
    if target not in transcript.images:
        raise TranscriptError(f"nvcc --dryrun printed no image for {target}")
    image = transcript.images[target]
    argument = next(word for word in fatbinary.argv if word.endswith(f",file={image}"))
    container, result = folder / f"{target}.fatbin", folder / f"{target}.o"
    pack = NvccStep(
        kind=StepKind.FATBINARY,
        argv=(*_options(fatbinary), f"--create={container}", argument),
        reads=(image,),
        writes=(container,),
        target=target,
    )
    name = "__nv_relfatbin" if _is_relocatable(fatbinary) else ".nv_fatbin"
    section = f"--update-section={name}={container}"
    exchange = NvccStep(
        kind=StepKind.EXCHANGE,
        argv=(str(objcopy), section, str(host_object), str(result)),
        reads=(container, host_object),
        writes=(result,),
        target=target,
    )
    return pack, exchange


def _needed(steps: Sequence[NvccStep], wanted: Iterable[Path]) -> tuple[NvccStep, ...]:
    """The steps without which ``wanted`` can't be made, and the checks of what they read."""
    producer = {path: step for step in steps for path in step.writes}
    kept: set[int] = set()
    files = list(wanted)
    while files:
        step = producer.get(files.pop())
        if step is not None and id(step) not in kept:
            kept.add(id(step))
            files.extend(step.reads)
    available = {path for step in steps if id(step) in kept for path in step.writes}
    checks = {id(step) for step in steps if not step.writes and available.issuperset(step.reads)}
    return tuple(step for step in steps if id(step) in kept | checks)
