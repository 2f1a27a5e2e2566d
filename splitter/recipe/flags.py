"""The compiler flags that a recipe can't set, because another key or archsplit itself does."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from splitter.recipe.values import Refused

_TARGETS = "targets.sass and targets.ptx say what is built"
_OURS = "archsplit decides it"
_RELOCATABLE = "relocatable device code is not supported yet"

_NVCC_NAMES = {
    **dict.fromkeys(("-arch", "--gpu-architecture", "-code", "--gpu-code"), _TARGETS),
    **dict.fromkeys(("-gencode", "--generate-code"), _TARGETS),
    **dict.fromkeys(("-std", "--std"), "write it as compile.std"),
    **dict.fromkeys(("-Xcompiler", "--compiler-options"), "write it in compile.host-flags"),
    "--include-path": "write the folder in source.include",
    "--define-macro": "write it in source.defines",
    "--library": "write it in link.libraries",
    "--library-path": "write the folder in link.library-folders",
    **dict.fromkeys(("-rdc", "--relocatable-device-code", "-dc", "--device-c"), _RELOCATABLE),
    **dict.fromkeys(("-dw", "--device-w", "-dlink", "--device-link"), _RELOCATABLE),
    **dict.fromkeys(("-c", "--compile", "-shared", "--shared", "-lib", "--lib"), _OURS),
    **dict.fromkeys(("-link", "--link", "-run", "--run", "-E", "--preprocess"), _OURS),
    **dict.fromkeys(("-ptx", "--ptx", "-cubin", "--cubin", "-fatbin", "--fatbin"), _OURS),
    **dict.fromkeys(("-o", "--output-file", "-odir", "--output-directory"), _OURS),
    **dict.fromkeys(("-ccbin", "--compiler-bindir", "-dryrun", "--dryrun"), _OURS),
    **dict.fromkeys(("-keep", "--keep", "-keep-dir", "--keep-dir", "-save-temps"), _OURS),
    **dict.fromkeys(("-t", "--threads", "-jobserver", "--jobserver"), _OURS),
}
"""Options of nvcc, each with the hint; a value may follow after ``=`` or as the next entry."""

_LETTERS = {
    "-I": "write the folder in source.include",
    "-D": "write it in source.defines",
    "-L": "write the folder in link.library-folders",
    "-l": "write it in link.libraries",
}
"""Options of both compilers whose value may follow at once."""

_LONG_ALL_THE_SAME = frozenset({"-lineinfo", "-lto"})


def _nvcc_flag(flag: str) -> str:
    return _checked(flag, _NVCC_NAMES.get(flag.partition("=")[0]) or _letter(flag))


def _host_flag(flag: str) -> str:
    if not flag.startswith("-"):
        raise Refused(f"{flag!r} is not a flag", hint="write one flag an entry, with its '-'")
    if "," in flag:
        raise Refused(f"{flag} has a comma in it, at which nvcc's -Xcompiler would split it")
    if flag.startswith("-std"):
        return _checked(flag, "write it as compile.std")
    return _checked(flag, _OURS if flag in {"-c", "-o", "-E", "-S"} else _letter(flag))


def _letter(flag: str) -> str | None:
    return None if flag in _LONG_ALL_THE_SAME else _LETTERS.get(flag[:2])


def _checked(flag: str, hint: str | None) -> str:
    if hint is not None:
        raise Refused(f"{flag} can't be set here", hint=hint)
    return flag


NvccFlag = Annotated[str, AfterValidator(_nvcc_flag)]
HostFlag = Annotated[str, AfterValidator(_host_flag)]
