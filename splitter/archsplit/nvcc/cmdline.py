"""nvcc's command line: parsed for the compiler wrapper, built for recipes.

The first half reads a user's command line: which arguments go to nvcc's dry run, and which ones
(``--keep``, ``-MD``, ``--threads``) are done by the program that runs the steps. The second half
writes the dry-run commands of a recipe's sources. Source: "NVCC Command Options" in NVIDIA's nvcc
documentation. Long options may begin with one dash or two; a value stands behind an equals sign or
is the next word.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from archsplit.arch.target import CodeKind, Target
from archsplit.nvcc.options import (
    FLAG_VARIABLES,
    KEEP_FOLDER,
    KEEPING,
    OPTIONS_FILES,
    dryrun_words,
    lacks_value,
    split_options,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path, PurePosixPath

    from archsplit.nvcc.toolkit import Toolkit

__pure__ = True


_THREADS = re.compile(r"threads|t(\d*)")
_PARTS = {
    "o": "output",
    "output-file": "output",
    "odir": "folder",
    "output-directory": "folder",
    "MT": "target",
    "dependency-target-name": "target",
    "MP": "phony",
    "generate-dependency-targets": "phony",
    "MM": "user",
    "generate-nonsystem-dependencies": "user",
    "MMD": "user",
    "generate-nonsystem-dependencies-with-compile": "user",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DepfileOptions:
    """The options about depfiles.

    Attributes:
        target: the rule's target by ``-MT``, or None.
        output: the value of ``-o``, or None.
        folder: the value of ``-odir``, or None.
        phony: True if each header gets a rule of its own, without commands (``-MP``).
        user_only: True if system headers are left out (``-MM``).
    """

    target: str | None
    output: str | None
    folder: str | None
    phony: bool
    user_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvccArguments:
    """A parsed command line of nvcc.

    Attributes:
        query: the arguments of the dry run: all but those about intermediate files and jobs.
        keep: the folder of kept intermediate files, as spelled, or None.
        depfile: the options about depfiles.
        has_options_files: True if some options are in files.
        is_threaded: True if nvcc would run its steps in threads.
    """

    query: tuple[str, ...]
    keep: str | None
    depfile: DepfileOptions
    has_options_files: bool
    is_threaded: bool

    @property
    def kept_prefix(self) -> str:
        """The prefix of kept files' names in the texts that nvcc writes."""
        return "" if self.keep in {None, "."} else f"{self.keep}/"


def parse_arguments(argv: Sequence[str]) -> NvccArguments:
    """Separate the dry run's arguments from the options about running the steps."""
    # As for nvcc, the last value counts.
    values = {name: value for name, value, _ in split_options(argv)}
    parts = {part: values[name] for name, part in _PARTS.items() if name in values}
    return NvccArguments(
        query=dryrun_words(argv),
        keep=values.get(KEEP_FOLDER, ".") if KEEPING & values.keys() else None,
        depfile=DepfileOptions(
            target=parts.get("target"),
            output=parts.get("output"),
            folder=parts.get("folder"),
            phony="phony" in parts,
            user_only="user" in parts,
        ),
        has_options_files=bool(OPTIONS_FILES & values.keys()),
        is_threaded=any(_thread_count(name, value) != 1 for name, value in values.items()),
    )


def apply_flag_variables(
    argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Move the flags of `FLAG_VARIABLES` from the environment into the command line.

    Nothing changes if a variable has quotes or backslashes.

    Returns:
        The command line, and the environment without the variables.
    """
    before, after = (environment.get(name, "") for name in FLAG_VARIABLES)
    # nvcc's rules for quotes are its own.
    if any(character in before + after for character in "\"\\'"):
        return tuple(argv), environment
    others = {name: text for name, text in environment.items() if name not in FLAG_VARIABLES}
    return (*before.split(), *argv, *after.split()), others


def expand_options_files(argv: Sequence[str], read: Callable[[str], str]) -> Iterator[str]:
    """Replace options files (``-optf``) by their words.

    Args:
        argv: the command line.
        read: returns a file's text by its name.

    Raises:
        ValueError: a file has a quote without its end, or an option without its value.
    """
    for option, value, words in split_options(argv):
        if option not in OPTIONS_FILES:
            yield from words
            continue
        for name in value.split(","):
            inside = tuple(_split_file(read(name)))
            # nvcc wants the value of the last option in the same file.
            if lacks_value(inside):
                raise ValueError("an option without its value")
            yield from expand_options_files(inside, read)


def _split_file(text: str) -> Iterator[str]:
    """Split the text of an options file as nvcc does.

    Measured with CUDA 13.0: double quotes and backslashes quote, single quotes don't. A quote
    behind a backslash is removed, too, if no other backslash is left before it.
    """
    word, quoted = None, False
    characters = iter(text)
    for character in characters:
        if character == "\\":
            following = next(characters, "")
            word = word or ""
            word += "" if following == '"' and not word.endswith("\\") else following
        elif character == '"':
            word, quoted = word or "", not quoted
        elif quoted or not character.isspace():
            word = (word or "") + character
        elif word is not None:
            yield word
            word = None
    if quoted:
        raise ValueError("a quote without its end")
    if word is not None:
        yield word


def _thread_count(name: str, value: str) -> int:
    match = _THREADS.fullmatch(name)
    number = value or (match[1] if match is not None else "")
    return int(number) if match is not None and number.isdigit() else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileOptions:
    """The options for all sources of a library.

    Attributes:
        include: folders, relative to nvcc's working folder.
        defines: ``NAME`` or ``NAME=VALUE``.
        standard: ``c++17``.
        nvcc_flags: further flags, as a user would type them.
        host_flags: flags for the host compiler alone.
        host_compiler: the value of nvcc's ``-ccbin``.
        relocatable: True if sources use each other's device code, which a device link resolves.
        system_include: absolute folders whose headers are the system's: no warnings about them.
    """

    include: tuple[PurePosixPath, ...]
    defines: tuple[str, ...]
    standard: str
    nvcc_flags: tuple[str, ...]
    host_flags: tuple[str, ...]
    host_compiler: Path
    relocatable: bool = False
    system_include: tuple[Path, ...] = ()


def dryrun_command(
    toolkit: Toolkit,
    options: CompileOptions,
    *,
    source: PurePosixPath,
    targets: Iterable[Target],
    folder: Path,
) -> tuple[str, ...]:
    """Return the dry-run command for the compilation of ``source`` to an object.

    ``--keep-dir`` gives every intermediate file a name without a process number, and keeps nvcc
    from deleting any of them.

    Args:
        toolkit: the nvcc to run.
        options: the options for all sources.
        source: relative to nvcc's working folder, so that no absolute path gets into ``__FILE__``.
        targets: all targets of the release, so that ``__CUDA_ARCH_LIST__`` doesn't depend on the
            targets that are built now.
        folder: an existing folder for this source alone.
    """
    return (
        *_dryrun_prefix(toolkit, folder),
        "-c",
        *(("-rdc=true",) if options.relocatable else ()),
        *_flags(toolkit, options),
        *(f"-I{include}" for include in options.include),
        *(word for folder in options.system_include for word in ("-isystem", str(folder))),
        *(f"-D{_list_item(define)}" for define in options.defines),
        *code_flags(targets),
        str(source),
        "-o",
        str(folder / "host.o"),
    )


def device_link_command(
    toolkit: Toolkit,
    options: CompileOptions,
    *,
    objects: Iterable[Path],
    libraries: Iterable[str],
    target: Target,
    folder: Path,
) -> tuple[str, ...]:
    """Return the dry-run command for the device link of ``objects`` for one target.

    Args:
        toolkit: the nvcc to run.
        options: the options for all sources.
        objects: absolute paths, of files that may not exist yet.
        libraries: the arguments ``-L…`` and ``-l…``.
        target: the only target of the objects' code.
        folder: an existing folder for this device link alone.
    """
    # A driver that links PTX takes every registered object, also an unused device runtime, which
    # nvlink leaves out when it links machine code.
    runtime = ("-cudadevrt=none",) if target.kind is CodeKind.PTX else ()
    return (
        *_dryrun_prefix(toolkit, folder),
        "-dlink",
        "-shared",
        *_flags(toolkit, options),
        *runtime,
        *code_flags((target,)),
        *map(str, objects),
        *libraries,
        f"-L{toolkit.library_folder}",
        "-o",
        str(folder / "device-link.o"),
    )


def _dryrun_prefix(toolkit: Toolkit, folder: Path) -> tuple[str, ...]:
    return (str(toolkit.nvcc), "--dryrun", "--keep", "--keep-dir", str(folder))


def _flags(toolkit: Toolkit, options: CompileOptions) -> tuple[str, ...]:
    host_flags = ("-fPIC", "-fvisibility=hidden", *_prefix_maps(toolkit), *options.host_flags)
    return (
        "-ccbin",
        str(options.host_compiler),
        f"-std={options.standard}",
        *(argument for flag in host_flags for argument in ("-Xcompiler", flag)),
        *options.nvcc_flags,
    )


def _list_item(define: str) -> str:
    # nvcc reads the value of -D as a list with commas, in which a backslash quotes the next
    # character. It prints a backslash as it is into double quotes, where the shell halves it again.
    return re.sub(r'([,"])', r"\\\1", define.replace("\\", "\\" * 4))


def _prefix_maps(toolkit: Toolkit) -> tuple[str, str]:
    # __FILE__ in the toolkit's own headers (CUB's asserts have it) must not name this machine's
    # folders. nvcc spells them with bin/.., and gcc follows the links in a system header's path.
    maps = (f"{toolkit.root}=/cuda", f"{toolkit.nvcc.parent}/..=/cuda")
    # nvcc hands the flag to a shell as it is: a toolkit in a folder with a space needs quotes.
    return (
        shlex.quote(f"-ffile-prefix-map={maps[0]}"),
        shlex.quote(f"-ffile-prefix-map={maps[1]}"),
    )


def code_flags(targets: Iterable[Target]) -> tuple[str, ...]:
    """Return nvcc's ``-gencode`` arguments for exactly these targets, in their order.

    Source: "Options for Steering GPU Code Generation" in NVIDIA's nvcc documentation.
    """
    flags: list[str] = []
    for target in targets:
        virtual = Target(kind=CodeKind.PTX, capability=target.capability, suffix=target.suffix)
        flags += ["-gencode", f"arch={virtual},code={target}"]
    return tuple(flags)
