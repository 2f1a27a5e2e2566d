"""Take out the waits that nvcc's own order has and its tools don't need.

- cicc waits for cudafe++ only because that one makes up the name of the translation unit: here the
  name is given, also where nobody waits for it, for what is made up depends on paths and times.
- The host compile waits for every ptxas only because it includes their results as text: here it
  makes assembly that includes the container as bytes, which is assembled when the container is
  there. What comes out is the same object.
- One nvlink waits for another only because both write the same registration file: here each has
  its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.nvcc.step_args import ID_FLAG, option_values
from archsplit.nvcc.steps import NvccStep, StepKind

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from archsplit.nvcc.steps import Transcript

__pure__ = True

_EMBEDDED = "--embedded-fatbin"
_REGISTER = "--register-link-binaries"
_GNU = re.compile(r"(?:.*-)?(?:gcc|g\+\+)(?:-[\d.]+)?")
_WATCHED = re.compile(
    r"-(?:M|g|save-temps|fdump|dump|fprofile|ftest-coverage|-coverage|Wa,|specs|fplugin|flto|#"
    r"|fstack-usage|fcallgraph-info|fsave-optimization|aux-info)|@"
)
"""Host flags by which a compile writes more than its object, or something of its own into it."""
_PLAIN_PATH = re.compile(r"[\w./ +,=-]+", re.ASCII)
_DATA = re.compile(r'(?:"\.quad [^"]*\\n"\n)+')


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaxedPlan:
    """A plan with fewer waits.

    Attributes:
        steps: in an order in which they could run one by one.
        texts: files that must be there before, with their content.
    """

    steps: tuple[NvccStep, ...]
    texts: Mapping[Path, str]


def unit_name(source: str, seed: str) -> str:
    """A name for a translation unit, of the shape of nvcc's own.

    Args:
        source: path of the source.
        seed: hexadecimal digits that no other unit of the program has; 16 of them count.
    """
    name = re.sub(r"[^0-9A-Za-z]", "_", Path(source).name)
    return f"_{seed[:8]}_{len(name)}_{name}_{seed[8:16]}"


def empty_container_commands(transcript: Transcript) -> dict[Path, tuple[str, ...]]:
    """For each embedded container the command that makes an empty one, and its C file, instead."""
    found = {}
    for step in transcript.steps:
        if step.kind is StepKind.FATBINARY:
            for name in option_values(step.argv, (_EMBEDDED,)):
                kept = (word for word in step.argv if not word.startswith(("--image", "--create=")))
                found[Path(name)] = tuple(kept)
    return found


def relax_order(
    transcript: Transcript,
    *,
    seed: Callable[[str], str],
    templates: Mapping[Path, str],
    everywhere: bool = True,
) -> RelaxedPlan:
    """Make the plan whose steps wait only for what they need.

    Args:
        transcript: what nvcc said.
        seed: for the path of a source see `unit_name`.
        templates: for embedded containers, the C file that `fatbinary` makes for an empty one.
        everywhere: give a name also where nobody waits for it, as for ``-ptx``. nvcc's own can't be
            told there.
    """
    steps, names = _named(transcript, seed, everywhere=everywhere)
    steps = _registered_apart(steps)
    texts: dict[Path, str] = dict(names)
    for embedded, template in templates.items():
        late = _late(steps, embedded, template)
        if late is not None:
            steps, texts[embedded] = late
    return RelaxedPlan(steps=tuple(steps), texts=texts)


def _named(
    transcript: Transcript, seed: Callable[[str], str], *, everywhere: bool
) -> tuple[list[NvccStep], dict[Path, str]]:
    names = {}
    for step in transcript.steps:
        shared = [path for path in transcript.module_ids if path in step.writes]
        for path in shared:
            if everywhere or any(path in other.reads for other in transcript.steps):
                (source,) = option_values(step.argv, ("--orig_src_path_name",))
                names[path] = unit_name(source, seed(source))
    return [without_module_id(step, names) for step in transcript.steps], names


def without_module_id(step: NvccStep, names: Container[Path]) -> NvccStep:
    """Return the step as it is where units are named beforehand, in these files.

    It makes up no name, and waits for nobody who would.
    """
    argv = step.argv
    if any(path in names for path in step.writes):
        argv = tuple(word for word in argv if word != ID_FLAG)
    return replace(
        step,
        argv=argv,
        reads=tuple(path for path in step.reads if path not in names),
        writes=tuple(path for path in step.writes if path not in names),
    )


def _registered_apart(steps: Sequence[NvccStep]) -> list[NvccStep]:
    """The last nvlink keeps the common registration file, as it would be the last to write it."""
    left = [name for step in steps for name in _registration(step)]
    results = {path for step in steps if step.kind is StepKind.NVLINK for path in step.writes}
    done = []
    for step in steps:
        for name in _registration(step):
            left.remove(name)
            # With -G its name, without the folder, gets into the result.
            folder = Path(name).parent / f"link-{len(left)}" if name in left else Path(name).parent
            done.append(_registering_in(step, name, folder / Path(name).name, results))
        if not _registration(step):
            done.append(step)
    return done


def _registration(step: NvccStep) -> tuple[str, ...]:
    """The registration file, one or none, that an nvlink writes."""
    return tuple(option_values(step.argv, (_REGISTER,))) if step.kind is StepKind.NVLINK else ()


def _registering_in(step: NvccStep, common: str, own: Path, results: Container[Path]) -> NvccStep:
    return replace(
        step,
        argv=_swapped(step.argv, f"{_REGISTER}={common}", f"{_REGISTER}={own}"),
        reads=tuple(path for path in step.reads if path not in results),
        writes=(own, *(path for path in step.writes if path != Path(common))),
    )


def _late(
    steps: Sequence[NvccStep], embedded: Path, template: str
) -> tuple[list[NvccStep], str] | None:
    """The steps with ``embedded`` put in at the end, and the text that it is replaced by."""
    compiles = [step for step in steps if embedded in step.reads]
    text = _including(template, embedded.with_suffix(""))
    if text is None or not compiles or not all(map(_can_wait, compiles)):
        return None
    done: list[NvccStep] = []
    for step in steps:
        if embedded in step.writes:
            done.append(_packed(step, embedded))
        elif step in compiles:
            done += _in_two(step, embedded)
        else:
            done.append(step)
    return done, text


def _including(template: str, container: Path) -> str | None:
    if not _PLAIN_PATH.fullmatch(str(container)):
        return None
    text, count = _DATA.subn(f'".incbin \\\\"{container}\\\\"\\\\n"\n', template)
    return text if count == 1 else None


def _can_wait(step: NvccStep) -> bool:
    # What the device link adds is small, and its source is nvcc's own.
    ours = any(str(path) in step.argv for path in step.reads)
    plain = not any(_WATCHED.match(word) for word in step.argv[1:])
    gnu = _GNU.fullmatch(Path(step.argv[0]).name)
    return step.kind is StepKind.HOST_COMPILE and ours and plain and gnu is not None


def _packed(step: NvccStep, embedded: Path) -> NvccStep:
    container = embedded.with_suffix("")
    argv = tuple(word for word in step.argv if not word.startswith((f"{_EMBEDDED}=", "--create=")))
    return replace(step, argv=(*argv, f"--create={container}"), writes=(container,))


def _in_two(step: NvccStep, embedded: Path) -> Iterator[NvccStep]:
    source = next(path for path in step.reads if str(path) in step.argv)
    assembly = source.with_suffix(".s")
    compiled = _with_value(step.argv, "-o", str(assembly))
    yield NvccStep(
        kind=StepKind.HOST_ASSEMBLY,
        argv=_swapped(compiled, "-c", "-S"),
        reads=tuple(path for path in step.reads if path != embedded),
        writes=(assembly,),
    )
    assembled = _with_value(step.argv, "-x", "assembler")
    yield NvccStep(
        kind=StepKind.ASSEMBLE,
        argv=_swapped(assembled, str(source), str(assembly)),
        reads=(assembly, embedded.with_suffix("")),
        writes=step.writes,
    )


def _with_value(argv: tuple[str, ...], flag: str, value: str) -> tuple[str, ...]:
    at = argv.index(flag) + 1
    return (*argv[:at], value, *argv[at + 1 :])


def _swapped(argv: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    at = argv.index(old)
    return (*argv[:at], new, *argv[at + 1 :])
