"""Cache keys of steps and of command lines, without names of folders; pure.

A step of nvcc becomes its flags without paths, its input files, and the file in which a host
compiler lists what it has read. A command with unpredictable inputs or outputs has no key. The key
of a command line has no names of outputs.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archsplit.cache.entry import KeyComponent, compute_key, environment_components
from archsplit.compiler.machine_facts import variable_components
from archsplit.compiler.prefix_map import NO_PREFIXES, PrefixMap, map_options
from archsplit.nvcc.cmdline import FLAG_VARIABLES, OUTPUT_NAMES, TARGET_NAMES
from archsplit.nvcc.dryrun import (
    StepKind,
    is_host_compiler,
    option_values,
    shell_variables,
    step_target,
)
from archsplit.nvcc.variables import debug_folder
from archsplit.system.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from archsplit.nvcc.cmdline import CommandLine, Option
    from archsplit.scheduler.graph import Step

__pure__ = True

# Neither fatbinary nor the assembler: both take less than a lookup of what they read.
_CUDA_STEPS = (StepKind.CUDAFE, StepKind.CICC, StepKind.PTXAS, StepKind.TILEIRAS, StepKind.NVLINK)
_PROGRAMS = {kind.value: kind for kind in _CUDA_STEPS}
_HOST_STEPS = {StepKind.HOST_COMPILE, StepKind.HOST_ASSEMBLY}
_PLACEHOLDER = b"\0archsplit:private"
_PRIVATE = "<private>/"
_SOURCE_NAME = "--orig_src_path_name"
_LINE_INFO = lazy_pattern(
    r"-g(?!encode|pu).*|-G|--?(?:generate-)?line-?info|--?(?:device-)?debug\S*|-pg"
)
_UNSUPPORTED = lazy_pattern(
    r"-(?:save-temps|fdump|dump|fprofile|fauto-profile|fbranch-prob|ftest-coverage|-coverage|specs|fplugin|flto|#)"
    r"|-(?:wrapper|gsplit-dwarf|aux-info|fopt-info|fcallgraph-info|fstack-usage|fcompare-debug|ftime)"
    r"|-(?:fmodule|fpch|include-pch|fdirectives-only|fdiagnostics-(?:add|set|format)|frecord-gcc)"
    r"|-(?:fsave-optimization|fdeps|fcondition-coverage|fpath-coverage|finput-charset=(?i:(?!utf-?8$)))"
    # Of the CUDA compilers' own front end.
    r"|--(?:preinclude|(?:create_|use_)?pch\b|pch_|error_output|list\b|xref|definition_list_file)"
    r"|-P$|-gz|-W[pa],|-X(?:assembler|preprocessor)|@|-M"
    # cicc reads the sources that line markers name, with their comments.
    r"|-show-src|--?(?:src|source)-in-ptx|--?keep|--?optf|--?options-file"
    # A name that the tool makes up itself depends on paths, times and process numbers.
    r"|--gen_module_id_file"
)
"""Arguments that make the inputs or outputs of a program unpredictable."""
_OBJECTS = (".o", ".a", ".so", ".obj", ".cubin", ".fatbin", ".ptx", ".ltoir")
_OUTPUTS = (
    *("-o", "-olto", "-MF", "--gen_c_file_name", "--gen_device_file_name", "--stub_file_name"),
    *("--create", "--embedded-fatbin", "--register-link-binaries", "--tile_bc_file_name"),
)
"""Flags that name what is written."""
_INCLUDE_FLAGS = ("-I", "-isystem", "-iquote", "-idirafter")
DEPFILE_FLAG = "-MF"
"""Names the file in which a host compiler lists what it has read."""
_DEPFILE_WORDS = ("-MD", DEPFILE_FLAG)


class StepKey(NamedTuple):
    """The command of a cacheable step.

    Attributes:
        kind: the kind of the step, such as ``cicc``.
        target: the target it works for, as text; "" for none.
        flags: its arguments, without folders, the user's file names, and what changes nothing.
        inputs: the files that it reads: those in the private folder, and link inputs.
        private: the private folder, a temporary one for all intermediate files.
        folder: the part of `private` with all of the command's files; `private` itself for nvlink.
        placeholder: stored in place of the private folder's name; b"" if no output may have it.
        host_depfile: the depfile with the other files that it reads; None if it reads no others.
        ignores_names: True if the same text gives the same result, whatever the names of files.
    """

    kind: StepKind
    target: str
    flags: tuple[KeyComponent, ...]
    inputs: tuple[Path, ...]
    private: Path
    folder: Path
    placeholder: bytes
    host_depfile: Path | None
    ignores_names: bool = False

    @property
    def label(self) -> str:
        """Return the label of the step for people."""
        return f"{self.kind.value} {self.target}".rstrip()


def line_info_flag(words: Iterable[str]) -> str:
    """Return the first flag that puts names of files and numbers of lines into results; or ""."""
    return next(filter(_LINE_INFO.fullmatch, words), "")


def folder_component(flag: str, folder: str) -> KeyComponent:
    """Return the component of a folder; the flag is the reason why the folder counts."""
    return KeyComponent(f"folder ({flag})", folder)


def has_unsupported_flags(argv: tuple[str, ...]) -> bool:
    """Return True if flags make the inputs or outputs of a command unpredictable."""
    has_depfile = argv[-3:-1] == _DEPFILE_WORDS
    return any(map(_UNSUPPORTED.match, argv[1:-3] if has_depfile else argv[1:]))


def with_depfile(step: Step, private: Path) -> Step:
    """Return the step; one of the host compiler's also lists the files that it reads.

    Files that generated code includes are in no preprocessed text, and files of ``-imacros`` are in
    no text at all.
    """
    argv = step.command.argv
    is_host = _step_kind(argv) in _HOST_STEPS or ("-E" in argv and is_host_compiler(argv[0]))
    if not is_host or not step.writes or any(word.startswith("-M") for word in argv[1:]):
        return step
    # Outputs of one name in different folders get different depfiles.
    name = hashlib.sha256(str(step.writes[0]).encode(errors="surrogateescape")).hexdigest()[:16]
    folder = next((path.parent for path in step.reads if path.is_relative_to(private)), private)
    host_depfile = folder / f"{name}.d"
    command = step.command._replace(argv=(*argv, *_DEPFILE_WORDS, str(host_depfile)))
    return step._replace(command=command)


def step_key(
    step: Step, private: Path, *, debug: bool, prefixes: PrefixMap = NO_PREFIXES
) -> StepKey | None:
    """Return the key of a step; None if its inputs are unpredictable.

    Args:
        private: the folder that all intermediate files are in.
        prefixes: the folders that the flags have placeholders for.
        debug: True if the step has a `line_info_flag`.
    """
    argv = step.command.argv
    kind = _step_kind(argv)
    if kind is None or has_unsupported_flags(argv):
        return None
    inputs = _inputs(step, private)
    if kind is StepKind.NVLINK:
        inputs += _link_inputs(step, private)
    if not inputs or not all(path in inputs or path.is_relative_to(private) for path in step.reads):
        return None
    host_depfile = next((Path(name) for name in option_values(argv, (DEPFILE_FLAG,))), None)
    if kind in _HOST_STEPS and host_depfile is None:
        return None
    # Sources that differ only for the host have equal PTX; only debug information names its file.
    ignores_names = kind is StepKind.PTXAS and not debug
    words = tuple(map(prefixes.map_argument, argv, ("", *argv)))
    flags = _flags(words, private, debug=debug)
    return StepKey(
        kind=kind,
        target=step_target(argv, kind),
        flags=tuple(_without_names(flags) if ignores_names else flags),
        ignores_names=ignores_names,
        inputs=inputs,
        private=private,
        placeholder=_PLACEHOLDER.ljust(len(str(private)), b"\0")
        if debug and kind in _HOST_STEPS
        else b"",
        folder=private if kind is StepKind.NVLINK else inputs[0].parent,
        host_depfile=host_depfile,
    )


def _step_kind(argv: tuple[str, ...]) -> StepKind | None:
    program = Path(argv[0]).name
    if program in _PROGRAMS or not is_host_compiler(program) or "-E" in argv:
        return _PROGRAMS.get(program)
    if "-S" in argv:
        return StepKind.HOST_ASSEMBLY
    assembles = "assembler" in argv or any(word.endswith(".s") for word in argv[1:])
    return StepKind.HOST_COMPILE if "-c" in argv and not assembles else None


def _inputs(step: Step, private: Path) -> tuple[Path, ...]:
    named = [path for word in step.command.argv[1:] for path in _paths(word, private)]
    # An output that no step reads isn't in `writes`; a killed run may have left it.
    written = {*step.writes, *map(Path, option_values(step.command.argv, _OUTPUTS))}
    read = dict.fromkeys(path for path in (*step.reads, *named) if path not in written)
    inside = [path for path in read if path.is_relative_to(private)]
    inside += [embedded for path in inside if path.suffix == ".cpp" for embedded in _fatbins(path)]
    return tuple(path for path in dict.fromkeys(inside) if path.is_file())


def _link_inputs(step: Step, private: Path) -> tuple[Path, ...]:
    """Return the user's objects, and all files that ``-l`` may find."""
    argv, cwd = step.command.argv, step.command.cwd
    words = [word for word in argv[1:] if word.endswith(_OBJECTS)]
    # The output of an earlier run isn't an input.
    written = {cwd / path for path in (*step.writes, *map(Path, option_values(argv, ("-o",))))}
    named = [cwd / word for word in words if cwd / word not in written]
    found = [path for path in named if not path.is_relative_to(private)]
    folders = [word.removeprefix("-L") for word in argv if word.startswith("-L")]
    for name in (word.removeprefix("-l") for word in argv if word.startswith("-l")):
        for folder in folders:
            found += [cwd / folder / f"lib{name}{suffix}" for suffix in _OBJECTS]
    return tuple(path for path in dict.fromkeys(found) if path.is_file())


def _fatbins(source: Path) -> Iterator[Path]:
    # nvcc's stub includes the embedded fatbin without a path, so that no argument names the file.
    for path in sorted(source.parent.glob("*.fatbin.c")):
        unit = path.name.removesuffix(".fatbin.c").removesuffix(".tile")
        if source.name.startswith(f"{unit}."):
            yield path


def _paths(word: str, private: Path) -> Iterator[Path]:
    at = word.find(f"{private}/")
    if at >= 0:
        yield Path(word[at:].rstrip('"'))


def _without_names(flags: Iterable[KeyComponent]) -> Iterator[KeyComponent]:
    for name, value in flags:
        if name != "output":
            is_file = value.startswith(_PRIVATE)
            yield KeyComponent(name, _PRIVATE + Path(value).suffix if is_file else value)


def _flags(argv: tuple[str, ...], private: Path, *, debug: bool) -> Iterator[KeyComponent]:
    inside = re.compile(rf"{re.escape(str(private))}/(?:[^/\s]+/)*")
    words = iter(argv[1:])
    for word in words:
        if word in {*_INCLUDE_FLAGS, DEPFILE_FLAG} or (word == _SOURCE_NAME and not debug):
            next(words, "")
        elif word == "-o":
            name = next(words, "")
            yield KeyComponent("output", inside.sub("", name) if inside.match(name) else "")
        elif not word.startswith(_INCLUDE_FLAGS):
            yield KeyComponent("flag", inside.sub(_PRIVATE, word))


_NAMES = {
    **dict.fromkeys(OUTPUT_NAMES, "output"),
    **dict.fromkeys(("MF", "dependency-output"), "depfile"),
    **dict.fromkeys(TARGET_NAMES, "target"),
}
"""Options with the name of an output, a depfile, or the target in a depfile."""
_FLAGS = lazy_pattern(r"[\s,='\"]+")
_SOURCE = lazy_pattern(r"^[^-].*\.(?:cu|cc|cxx|cpp|c|ptx|ii)$")
_INDIRECT = lazy_pattern(r"^@|^native$|^-+(?:arch|gpu-architecture|code|gpu-code)=native$")
"""Arguments that stand for others: those in a file, or this machine's GPU (``native``)."""
_RELOCATABLE = lazy_pattern(r"--?(?:rdc|relocatable-device-code|dc|device-c|dlto)\b")
OUTPUT, DEPFILE = "<output>", "<depfile>"


class CompileRequest(NamedTuple):
    """A call of nvcc as a key.

    Attributes:
        parts: components for all that a result depends on, except files.
        cwd: nvcc's working folder.
        named: files that the command line names, by role: `OUTPUT`, `DEPFILE`.
        prefixes: folders that the parts have placeholders for.
    """

    parts: tuple[KeyComponent, ...]
    cwd: Path
    named: Mapping[str, Path]
    prefixes: PrefixMap = NO_PREFIXES

    @property
    def key(self) -> str:
        """Return the key of the request's manifest."""
        return compute_key(self.parts)

    @property
    def subject(self) -> str:
        """Return the names of the sources, by which miss reasons find earlier compilations."""
        words = [part.value for part in self.parts if part.name == "flag"]
        return " ".join(Path(word).name for word in words if _SOURCE.search(word))

    def role(self, path: Path) -> str:
        """Return the role of a file, which doesn't depend on the output's name."""
        for role, named in self.named.items():
            if path == named:
                return role
        output = self.named.get(OUTPUT)
        if output is not None and path == output.with_suffix(path.suffix):
            return f"{OUTPUT}{path.suffix}"
        return os.path.relpath(path, self.cwd)

    def path(self, role: str) -> Path:
        """Return the file with a role: the inverse of `role`."""
        for name, named in self.named.items():
            if role.startswith(name):
                suffix = role.removeprefix(name)
                return named.with_suffix(suffix) if suffix else named
        return Path(os.path.normpath(self.cwd / role))


def compile_request(
    command: CommandLine,
    *,
    nvcc: str,
    driver: tuple[KeyComponent, ...],
    cwd: Path,
    environment: Mapping[str, str],
    salt: str,
    version: str,
    prefixes: PrefixMap = NO_PREFIXES,
    bases: Sequence[str] = (),
) -> CompileRequest | None:
    """Return the request; None if its inputs or outputs are unpredictable.

    Args:
        command: nvcc's command line.
        nvcc: nvcc's real path, which also stands for the toolkit around it.
        driver: the identity of nvcc, the compiler driver; see `ToolIdentities.driver`.
        salt: the user's setting; another salt gives other keys.
        version: archsplit's version, because archsplit changes steps.
        prefixes: the folders that get placeholders if results can't have their names.
        bases: the folders of ``base-dir`` that the host compiler leaves out of results.
    """
    words = command.dryrun_argv
    # Arguments in a file, the machine's GPU, and flags in variables are not in the key.
    if any(map(_INDIRECT.search, words)) or any(map(environment.get, FLAG_VARIABLES)):
        return None
    named: dict[str, Path] = {}
    unnamed: list[Option] = []
    repeated = []
    for option in command.dryrun_options:
        name, value, _ = option
        # The same object under another name is the same result.
        if name in _NAMES:
            role = f"<{_NAMES[name]}>"
            # nvcc warns about a second name, and the result has the warning.
            if named.get(role, cwd / value) != cwd / value:
                repeated.append(KeyComponent("repeated", role))
            named[role] = cwd / value
        else:
            unnamed.append(option)
    # The target of a depfile is not a file; on each hit, the depfile is written anew.
    named.pop("<target>", None)
    debug = line_info_flag(split_flags(words))
    # Line information has the names of headers, and so has code for link-time optimization.
    if debug or any("lto" in word for word in words):
        prefixes = PrefixMap(bases=prefixes.bases)
    # Relocatable code has external symbols with the module id: see `module_id_seed`.
    folder_reason = debug or next(filter(_RELOCATABLE.match, words), "")
    if bases:
        folder_reason = f"{folder_reason}, base-dir".removeprefix(", ")
    folder_parts = (
        [folder_component(folder_reason, prefixes.map_path(debug_folder(cwd, environment)))]
        if folder_reason
        else []
    )
    if prefixes.isolated:
        folder_parts.append(KeyComponent("isolated folders", str(len(prefixes.isolated))))
    # With base-dir, results have other names of files.
    folder_parts += [KeyComponent("base-dir", prefixes.map_path(base)) for base in bases]
    return CompileRequest(
        parts=(
            KeyComponent("archsplit", version),
            KeyComponent("salt", salt),
            KeyComponent("path of nvcc", prefixes.map_path(nvcc)),
            *driver,
            *folder_parts,
            *variable_components(environment, epoch=False, driver=True),
            *environment_components(environment, shell_variables([*words, str(cwd)])),
            # The options that are given, without the names.
            KeyComponent("named", " ".join(sorted(named))),
            *repeated,
            *(KeyComponent("flag", word) for word in map_options(unnamed, prefixes)),
        ),
        cwd=cwd,
        named=named,
        prefixes=prefixes,
    )


def split_flags(words: Iterable[str]) -> Iterator[str]:
    """Return the flags in words that may hold several, as ``-Xcompiler=-g,-O2``."""
    return (piece for word in words for piece in _FLAGS.split(word) if piece)
