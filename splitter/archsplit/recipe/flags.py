"""Compiler flags in recipes, and the flags that a recipe can't set.

A refused flag belongs to another key, or to archsplit itself; the hint has the right place.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from archsplit.recipe.values import InvalidValue

__pure__ = True

_TARGETS = "targets.sass and targets.ptx say what is built"
_OURS = "archsplit decides it"
_WRITES = "leave it out: it writes files beside what is built"
_LTO = "optimisation at the device link is not supported yet"
_NOT_RELOCATABLE = "leave it out, or write compile.rdc = true"
_UNHASHED = "write the options themselves, so that the build id covers them"
_LANGUAGE = "leave it out: the file's name says its language"
_HEADER = "write #include in the sources"
_FOLDER = "write the folder in source.include"
_HERE_ONLY = "name the processor, as in -march=x86-64-v3: wheels run on other machines, too"

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
        ("-optf --options-file", _UNHASHED),
        ("-x --x", _LANGUAGE),
    )
    for name in names.split()
}
"""Refused options of nvcc with their hints; a value may follow after ``=``."""

RELOCATABLE_FLAGS = frozenset(
    ("-rdc=true", "--relocatable-device-code=true", "-dc", "--device-c"),
)
"""The flags with the meaning of ``compile.rdc``."""

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
