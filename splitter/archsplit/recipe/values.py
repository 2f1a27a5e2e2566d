"""Types of the values in a recipe, and the matching of file patterns.

Each type is text that pydantic checks; a refused value raises `InvalidValue` with a hint. A refused
flag belongs to another key, or to archsplit itself: the hint has the right place. Patterns are
matched here, the same on every system and version of Python: `pathlib`'s own globs differ between
versions in the meaning of ``**`` and of a trailing ``**``.
"""

from __future__ import annotations

import difflib
import keyword
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator
from pydantic_core import core_schema

from archsplit.arch.target import CodeKind, Target
from archsplit.errors import TargetError
from archsplit.nvcc.cuda_libraries import CUDA_WHEELS
from archsplit.wheels.filename import DROPPED_EXTRA

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

__pure__ = True


class RecipeTable:
    """A table of a recipe, with its configuration for pydantic."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = {
        "extra": "forbid",
        "alias_generator": lambda name: name.replace("_", "-"),
    }


TextValidator = partial(PlainValidator, json_schema_input_type=str)
"""Validator of text that becomes another type."""

_Item = TypeVar("_Item")


class InvalidValue(ValueError):  # noqa: N818 (it never leaves this package: it becomes a `RecipeFault`)
    """A value is invalid for its key.

    Attributes:
        hint: what to do about it, or None.
        at: position in the value, such as the index in a list.
    """

    def __init__(self, message: str, *, hint: str | None = None, at: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.at = at


def _target(kind: CodeKind, value: object) -> Target:
    if not isinstance(value, str):
        raise InvalidValue(f"must be text, not {value!r}")
    try:
        target = Target.parse(value)
    except TargetError as error:
        raise InvalidValue(error.args[0], hint=error.hint) from None
    if target.kind is not kind:
        raise InvalidValue(
            f"{value} is {target.kind.name}, not {kind.name}",
            hint=f"write it in targets.{target.kind.name.lower()}",
        )
    return target


def check_package_name(text: str) -> str:
    """Return the name of an import package, or raise `InvalidValue`."""
    if not (text.isascii() and text.isidentifier()) or keyword.iskeyword(text):
        raise InvalidValue(
            f"{text!r} can't be imported", hint="write one Python identifier, such as vecsort"
        )
    return text


def _define(text: str) -> str:
    # The steps of a dry run are shell lines, in which both characters are special.
    if found := re.search(r"[`$]", text):
        raise InvalidValue(
            f"{text!r} has a {found[0]} in it, which the shell lines that nvcc plans would expand",
            hint="write it in a header",
        )
    return text


def _cuda_library(text: str) -> str:
    if text in CUDA_WHEELS:
        return text
    hint = f"known here: {', '.join(CUDA_WHEELS)}"
    if text in {"cudart", "cudart_static"}:
        hint = "leave it out: every plugin has the CUDA runtime, linked statically"
    elif text in {"cuda", "nvidia-ml"}:
        hint = "write it in link.libraries: the driver brings it"
    elif near := difflib.get_close_matches(text, CUDA_WHEELS, n=1):
        hint = f"did you mean {near[0]}?"
    raise InvalidValue(f"{text!r} is not a library of CUDA's wheels", hint=hint)


def _unique(items: tuple[_Item, ...]) -> tuple[_Item, ...]:
    for index, item in enumerate(items):
        # A quadratic search: such lists have some ten entries.
        if item in items[:index]:
            raise InvalidValue(f"{item} is listed twice", at=(index,))
    return items


def _some(items: tuple[_Item, ...]) -> tuple[_Item, ...]:
    if not items:
        raise InvalidValue("must have at least one entry")
    return _unique(items)


@dataclass(frozen=True, slots=True)
class Matching:
    """An annotation of text that must match a pattern as a whole.

    Attributes:
        pattern: a regular expression that means the same to Python and in a JSON schema.
        what: description for error messages, with an example.
    """

    pattern: str
    what: str

    def check(self, text: str) -> str:
        """Return the text if it matches, else raise `InvalidValue`."""
        if not re.fullmatch(self.pattern, text, re.ASCII):
            raise InvalidValue(f"{text!r} is not {self.what}")
        return text

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        # A JSON schema searches its pattern anywhere in the text, so the ends are anchored.
        return {**handler(schema), "pattern": f"^(?:{self.pattern})$"}


MacroDefinition = Annotated[
    str,
    Matching(r"[A-Za-z_]\w*(=[ -~]*)?", "a define, such as NAME or NAME=VALUE"),
    AfterValidator(_define),
]
CppStandard = Annotated[str, Matching(r"c\+\+\d\d", "a C++ standard, such as c++17")]
GlibcPolicy = Annotated[
    str, Matching(r"2_(1[7-9]|[2-9]\d)", "the glibc of a manylinux policy, such as 2_28")
]
LibraryFile = Annotated[
    str, Matching(r"\w[\w.+-]*\.so", "the file name of a library, such as libvecsort.so")
]
LibraryName = Annotated[str, Matching(r"\w[\w.+-]*", "the name of a library, such as pthread")]
CudaMajor = Annotated[int, Field(strict=True, ge=11, le=99)]
CudaLibraryName = Annotated[str, AfterValidator(_cuda_library)]
ProvidedLibrary = Annotated[
    str,
    Matching(r"\w[\w.+-]*\.so(\.[\d.]+)?", "the name of a shared library, such as libgomp.so.1"),
]
SymbolName = Annotated[str, Matching(r"[A-Za-z_]\w*", "a C identifier")]
PackageName = Annotated[str, AfterValidator(check_package_name)]
DroppedExtra = Annotated[str, Matching(DROPPED_EXTRA.pattern, "the extra of a pack, such as cc70")]
Sass = Annotated[Target, TextValidator(partial(_target, CodeKind.SASS))]
Ptx = Annotated[Target, TextValidator(partial(_target, CodeKind.PTX))]
Unique = Annotated[
    tuple[_Item, ...], AfterValidator(_unique), Field(json_schema_extra={"uniqueItems": True})
]
"""A list in which no entry is repeated."""
OneOrMore = Annotated[
    tuple[_Item, ...],
    AfterValidator(_some),
    Field(json_schema_extra={"uniqueItems": True, "minItems": 1}),
]
"""Same, with at least one entry."""


def matching_files(root: Path, pattern: PurePosixPath) -> tuple[PurePosixPath, ...]:
    """Return the files below ``root`` that match a pattern, sorted and relative to ``root``.

    ``*``, ``?`` and ``[…]`` match within one name, ``**`` any number of folders; at the end it
    matches every file below. Names that begin with a dot are matched by patterns that do, too.
    Links are followed, but ``**`` does not enter linked folders, so a circle of links ends.

    Raises:
        OSError: a folder can't be listed.
    """
    parts = (*pattern.parts, "*") if pattern.name == "**" else pattern.parts
    found = {path.relative_to(root).as_posix() for path in _walk(root, parts)}
    return tuple(map(PurePosixPath, sorted(found)))


def _walk(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    first, *rest = parts
    if first == "**":
        yield from _walk(folder, rest)
    for path in folder.iterdir():
        # A linked folder may lead to a parent: the walk would never end.
        if first == "**":
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from _walk(path, parts)
        elif _matches(path.name, first):
            # The last part must be a file, each other part a folder.
            if not rest and path.is_file():
                yield path
            elif rest and path.is_dir():
                yield from _walk(path, rest)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) and (pattern.startswith(".") or not name.startswith("."))


_TARGETS = "targets.sass and targets.ptx say what is built"
_OURS = "archsplit decides it"
_WRITES = "leave it out: it writes files beside what is built"
_LTO = "optimisation at the device link is not supported yet"
_NOT_RELOCATABLE = "leave it out, or write compile.rdc = true"
_UNHASHED = "write the options themselves, so that the build id covers them"
_LANGUAGE = "leave it out: the file's name says its language"
_HEADER = "write #include in the sources"
_FOLDER = "write the folder in source.include"
_HERE_ONLY = "name the processor, such as -march=x86-64-v3: wheels also run on other machines"

_NVCC_NAMES = {
    name: hint
    for names, hint in (
        ("-arch --gpu-architecture -code --gpu-code -gencode --generate-code", _TARGETS),
        ("-std --std", "write it as compile.std"),
        ("-Xcompiler --compiler-options", "write it in compile.host-flags"),
        ("-march -mcpu -mtune", "write it in compile.host-flags"),
        ("--include-path -isystem --system-include", _FOLDER),
        ("-include --pre-include", _HEADER),
        ("--define-macro", "write it in source.defines"),
        ("--library", "write it in link.libraries"),
        ("--library-path", "write the folder in link.library-folders"),
        ("-rdc --relocatable-device-code -dw --device-w", _NOT_RELOCATABLE),
        ("-ewp --extensible-whole-program", _NOT_RELOCATABLE),
        ("-dlto --dlink-time-opt -lto --lto -ltoir --ltoir -gen-opt-lto --gen-opt-lto", _LTO),
        ("-dlink --device-link -cudadevrt --cudadevrt", _OURS),
        ("-c --compile -shared --shared -lib --lib -link --link -run --run", _OURS),
        ("-E --preprocess -ptx --ptx -cubin --cubin -fatbin --fatbin", _OURS),
        ("-cuda --cuda -optix-ir --optix-ir -r --relocatable-link", _OURS),
        ("-o --output-file -odir --output-directory -ccbin --compiler-bindir", _OURS),
        ("-dryrun --dryrun -keep --keep -keep-dir --keep-dir -clean --clean-targets", _OURS),
        ("-save-temps --save-temps -objtemp --objdir-as-tempdir", _OURS),
        ("-t --threads -jobserver --jobserver", _OURS),
        ("-M --generate-dependencies -MM --generate-nonsystem-dependencies", _OURS),
        ("-MD --generate-dependencies-with-compile -MT --dependency-target-name", _OURS),
        ("-MMD --generate-nonsystem-dependencies-with-compile", _OURS),
        ("-MF --dependency-output -MP --generate-dependency-targets", _OURS),
        ("-hls --host-linker-script -aug-hls --augment-host-linker-script", _OURS),
        ("-h --help -V --version -code-ls --list-gpu-code -arch-ls --list-gpu-arch", _OURS),
        ("-time --time -fdevice-time-trace --fdevice-time-trace", _WRITES),
        ("-enable-tile --enable-tile", "build Tile kernels by your own command, in source.build"),
        ("-optf --options-file", _UNHASHED),
        ("-x --x", _LANGUAGE),
    )
    for name in names.split()
}
"""Refused options of nvcc with their hints; a value may follow after ``=``."""

RELOCATABLE_FLAGS = frozenset(
    ("-rdc=true", "--relocatable-device-code=true", "-dc", "--device-c"),
)
"""Flags with the meaning of ``compile.rdc``."""

_HOST_NAMES = (
    (r"-std\b.*", "write it as compile.std"),
    (r"-[cES]|-o.*|-(M|MM|MD|MMD|MP|MG|MF.*|MT.*|MQ.*)", _OURS),
    (r"--?save-temps.*|-time.*|-aux-info.*|-dump.*|-fdump-.*|--coverage|-ftest-coverage", _WRITES),
    (r"-?-specs.*", _UNHASHED),
    (r"-x.*", _LANGUAGE),
    (r"-include.*|-imacros.*", _HEADER),
    (r"-(isystem|iquote|idirafter|iprefix|iwithprefix|isysroot|-sysroot).*", _FOLDER),
    (r"-m(arch|cpu|tune)=native", _HERE_ONLY),
)
"""Patterns of refused options of the host compiler, with their hints."""

_SHORT_OPTIONS = {
    "-I": _FOLDER,
    "-D": "write it in source.defines",
    "-L": "write the folder in link.library-folders",
    "-l": "write it in link.libraries",
}
"""Refused options of both compilers whose value may follow without a space."""

# -lineinfo begins with -l, but names no library.
_LONG_OPTIONS = frozenset({"-lineinfo"})


def _nvcc_flag(flag: str) -> str:
    _check_form(flag, hint="write one flag an entry, a value after '=': -maxrregcount=32")
    # Allowed here: `Compile.relocatable` gives it the same meaning as compile.rdc.
    if flag in RELOCATABLE_FLAGS:
        return flag
    return _checked(flag, _NVCC_NAMES.get(flag.partition("=")[0]) or _short_option_hint(flag))


def _host_flag(flag: str) -> str:
    _check_form(flag, hint="write one flag an entry, with its '-'")
    # nvcc splits the value of -Xcompiler at commas, and host-flags are given through it.
    if "," in flag:
        raise InvalidValue(f"{flag} has a comma in it, at which nvcc's -Xcompiler would split it")
    hints = (hint for pattern, hint in _HOST_NAMES if re.fullmatch(pattern, flag))
    return _checked(flag, next(hints, None) or _short_option_hint(flag))


def _check_form(flag: str, *, hint: str) -> None:
    # Before the general check, which would report a missing dash.
    if flag.startswith("@"):
        raise InvalidValue(f"{flag} is a file of flags", hint=_UNHASHED)
    # A word without dash would be an input file to both compilers.
    if not flag.startswith("-") or not flag.isprintable():
        raise InvalidValue(f"{flag!r} is not a flag", hint=hint)


def _short_option_hint(flag: str) -> str | None:
    return None if flag in _LONG_OPTIONS else _SHORT_OPTIONS.get(flag[:2])


def _checked(flag: str, hint: str | None) -> str:
    if hint is not None:
        raise InvalidValue(f"{flag} can't be set here", hint=hint)
    return flag


NvccFlag = Annotated[str, AfterValidator(_nvcc_flag)]
HostFlag = Annotated[str, AfterValidator(_host_flag)]
