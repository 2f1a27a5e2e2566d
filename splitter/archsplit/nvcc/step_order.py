"""Removal of the dependencies between steps that nvcc adds and its tools don't need.

In: a transcript; out: a `RelaxedPlan` of the same outputs with a shorter critical path.

- cicc waits for cudafe++ only because cudafe++ generates the module id: here the id is given in
  advance. That is also done if no step waits for it, because a generated id depends on paths and
  times.
- The host compile waits for every ptxas only because it includes the container as text: here it
  writes assembly, which includes the container as bytes and is assembled at the end. The object is
  the same.
- One nvlink waits for another only because both write the same registration file: here each has
  its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.nvcc.dryrun import ID_FLAG, NvccStep, StepKind, option_values
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator, Mapping, Sequence

    from archsplit.nvcc.dryrun import Transcript

__pure__ = True

_EMBEDDED = "--embedded-fatbin"
_REGISTER = "--register-link-binaries"
_GNU_COMPILER = lazy_pattern(r"(?:.*-)?(?:gcc|g\+\+)(?:-[\d.]+)?")
_EXTRA_OUTPUT = lazy_pattern(
    r"-(?:M|g|save-temps|fdump|dump|fprofile|ftest-coverage|-coverage|Wa,|specs|fplugin|flto|#"
    r"|fstack-usage|fcallgraph-info|fsave-optimization|aux-info)|@"
)
"""Host flags by which a compile writes further files, or other content into its object."""
_PLAIN_PATH = lazy_pattern(r"[\w./ +,=-]+", re.ASCII)
_QUADS = lazy_pattern(r'(?:"\.quad [^"]*\\n"\n)+')


class RelaxedPlan(NamedTuple):
    """Steps with fewer dependencies.

    Attributes:
        steps: in an order in which they could run one after the other.
        texts: contents of the files that have to exist before the first step.
    """

    steps: tuple[NvccStep, ...]
    texts: Mapping[Path, str]


def seeded_module_id(source: str, seed: str) -> str:
    """Return a module id in the form of nvcc's own.

    Args:
        source: path of the source.
        seed: hexadecimal digits that are unique in the program; the first 16 are used.
    """
    name = re.sub(r"[^0-9A-Za-z]", "_", Path(source).name)
    return f"_{seed[:8]}_{len(name)}_{name}_{seed[8:16]}"


def empty_container_commands(transcript: Transcript) -> dict[Path, tuple[str, ...]]:
    """Return the command for an empty container and its C file, by embedded container."""
    commands = {}
    for step in transcript.steps:
        if step.kind is StepKind.FATBINARY:
            for name in option_values(step.argv, (_EMBEDDED,)):
                kept = (word for word in step.argv if not word.startswith(("--image", "--create=")))
                commands[Path(name)] = tuple(kept)
    return commands


def relax_order(
    transcript: Transcript,
    *,
    seed: Callable[[str], str],
    templates: Mapping[Path, str],
    everywhere: bool = True,
) -> RelaxedPlan:
    """Return steps that wait only for files that they need.

    Args:
        transcript: nvcc's own steps.
        seed: returns a module id's seed by the path of a source; see `seeded_module_id`.
        templates: the C file that `fatbinary` writes for an empty container, by embedded container.
        everywhere: True to give a module id also if no step waits for it, as for ``-ptx``.
    """
    steps, ids = _set_module_ids(transcript, seed, everywhere=everywhere)
    steps, containers = _embed_last(_separate_registrations(steps), templates)
    return RelaxedPlan(steps=tuple(steps), texts={**ids, **containers})


def _set_module_ids(
    transcript: Transcript, seed: Callable[[str], str], *, everywhere: bool
) -> tuple[list[NvccStep], dict[Path, str]]:
    ids = {}
    for step in transcript.steps:
        shared = [path for path in transcript.module_id_files if path in step.writes]
        for path in shared:
            if everywhere or any(path in other.reads for other in transcript.steps):
                (source,) = option_values(step.argv, ("--orig_src_path_name",))
                ids[path] = seeded_module_id(source, seed(source))
    return [without_module_id(step, ids) for step in transcript.steps], ids


def without_module_id(step: NvccStep, files: Container[Path]) -> NvccStep:
    """Return the step for the case that the files of module ids exist in advance.

    Such a step generates no id, and waits for no other step that would.
    """
    argv = step.argv
    if any(path in files for path in step.writes):
        argv = tuple(word for word in argv if word != ID_FLAG)
    return step._replace(
        argv=argv,
        reads=tuple(path for path in step.reads if path not in files),
        writes=tuple(path for path in step.writes if path not in files),
    )


def _separate_registrations(steps: Sequence[NvccStep]) -> list[NvccStep]:
    """Give each nvlink a registration file of its own."""
    # The last nvlink keeps the common file: it is the last to write there in nvcc's order, too.
    remaining = [name for step in steps for name in _registration(step)]
    results = {path for step in steps if step.kind is StepKind.NVLINK for path in step.writes}
    done = []
    for step in steps:
        for name in _registration(step):
            remaining.remove(name)
            # Another folder, not another name: with -G the result contains the name.
            folder = (
                Path(name).parent / f"link-{len(remaining)}"
                if name in remaining
                else Path(name).parent
            )
            done.append(_move_registration(step, name, folder / Path(name).name, results))
        if not _registration(step):
            done.append(step)
    return done


def _registration(step: NvccStep) -> tuple[str, ...]:
    """Return the registration file, one or none, of an nvlink."""
    return tuple(option_values(step.argv, (_REGISTER,))) if step.kind is StepKind.NVLINK else ()


def _move_registration(
    step: NvccStep, common: str, own: Path, results: Container[Path]
) -> NvccStep:
    return step._replace(
        argv=_replace_word(step.argv, f"{_REGISTER}={common}", f"{_REGISTER}={own}"),
        reads=tuple(path for path in step.reads if path not in results),
        writes=(own, *(path for path in step.writes if path != Path(common))),
    )


def _embed_last(
    steps: Sequence[NvccStep], templates: Mapping[Path, str]
) -> tuple[list[NvccStep], dict[Path, str]]:
    """Return steps that embed containers at the end, and the new C files.

    A container is left as it is if its C file has another form, or a compile can't be divided.
    """
    texts: dict[Path, str] = {}
    for embedded, template in templates.items():
        compiles = [step for step in steps if embedded in step.reads]
        text = _include_bytes(template, embedded.with_suffix(""))
        if text is not None and compiles and all(map(_can_divide, compiles)):
            texts[embedded] = text
    done: list[NvccStep] = []
    for step in steps:
        created = [path for path in step.writes if path in texts]
        if created:
            done.append(_create_container(step, created[0]))
        elif not texts.keys().isdisjoint(step.reads):
            done += _divide_compile(step, texts)
        else:
            done.append(step)
    return done, texts


def _include_bytes(template: str, container: Path) -> str | None:
    # The path stands in a C string in assembly: other characters would need two kinds of quotes.
    if not _PLAIN_PATH.fullmatch(str(container)):
        return None
    text, count = _QUADS.subn(f'".incbin \\\\"{container}\\\\"\\\\n"\n', template)
    return text if count == 1 else None


def _can_divide(step: NvccStep) -> bool:
    # The object of a device link is small and made from nvcc's own source: no compile to divide.
    has_source = any(str(path) in step.argv for path in step.reads)
    plain = not any(_EXTRA_OUTPUT.match(word) for word in step.argv[1:])
    gnu = _GNU_COMPILER.fullmatch(Path(step.argv[0]).name)
    return step.kind is StepKind.HOST_COMPILE and has_source and plain and gnu is not None


def _create_container(step: NvccStep, embedded: Path) -> NvccStep:
    container = embedded.with_suffix("")
    argv = tuple(word for word in step.argv if not word.startswith((f"{_EMBEDDED}=", "--create=")))
    return step._replace(argv=(*argv, f"--create={container}"), writes=(container,))


def _divide_compile(step: NvccStep, texts: Container[Path]) -> Iterator[NvccStep]:
    source = next(path for path in step.reads if str(path) in step.argv)
    assembly = source.with_suffix(".s")
    compiled = _replace_value(step.argv, "-o", str(assembly))
    yield NvccStep(
        kind=StepKind.HOST_ASSEMBLY,
        argv=_replace_word(compiled, "-c", "-S"),
        reads=tuple(path for path in step.reads if path not in texts),
        writes=(assembly,),
    )
    assembled = _replace_value(step.argv, "-x", "assembler")
    containers = (path.with_suffix("") for path in step.reads if path in texts)
    yield NvccStep(
        kind=StepKind.ASSEMBLE,
        argv=_replace_word(assembled, str(source), str(assembly)),
        reads=(assembly, *containers),
        writes=step.writes,
    )


def _replace_value(argv: tuple[str, ...], flag: str, value: str) -> tuple[str, ...]:
    at = argv.index(flag) + 1
    return (*argv[:at], value, *argv[at + 1 :])


def _replace_word(argv: tuple[str, ...], old: str, new: str) -> tuple[str, ...]:
    at = argv.index(old)
    return (*argv[:at], new, *argv[at + 1 :])
