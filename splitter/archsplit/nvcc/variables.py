"""Environment variables that change what compilers make, or what they say.

Each hit of the compiler wrapper needs this module, so it imports nothing that Python's start hasn't
imported. Names of variables are compared without regular expressions, which take 3 ms to import and
compile.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_STEP_NAMES = {
    *("CPATH", "LPATH", "LIBRARY_PATH", "COMPILER_PATH", "SOURCE_DATE_EPOCH", "LANG", "LANGUAGE"),
    *("LD_PRELOAD", "LD_AUDIT", "NVVMCCWIZ", "USR_INCLUDE", "CAN_FINALIZE_DEBUG"),
}
"""Variables that the tools read: observed by tracing their calls of ``getenv``."""
_STEP_PREFIXES = (
    *("LC_", "GCC_", "G++_", "BINUTILS_", "CCC_", "CLANG_", "EDG_", "LLVM_", "LIBNVVM_"),
    *("NV_NVVM_", "CICC_", "PTXAS_", "NVVM_"),
)
_UNREAD_PREFIXES = ("LC_TIME",)
_DRIVER_TOOLS = ("CICC", "PTXAS", "NVVM")
"""Tools whose ``_PATH`` and ``_FLAGS`` nvcc reads, not the tool itself."""
_FLAG_TOOLS = (
    *(*_DRIVER_TOOLS, "CUDAFE", "OCG", "NVLINK", "FATBINARY", "LLVMC"),
    *("LLVMDIS", "NVASM", "NVDISASM"),
)
_DRIVER_NAMES = {
    *("INCLUDES", "SYSTEM_INCLUDES", "LIBRARIES", "CICC_PATH", "NVVMIR_LIBRARY_DIR", "TOP"),
    "compiler-bindir",
    *(f"{tool}_FLAGS" for tool in _FLAG_TOOLS),
}
_DRIVER_PREFIX = "NVCC_"
"""Variables that nvcc or its profile reads; steps have their values as arguments."""
_MOST_WORDS = 2
"""Words in a variable of the profile, such as ``_TARGET_SIZE_``."""
EPOCH = "SOURCE_DATE_EPOCH"
"""Variable with the time for ``__DATE__`` and ``__TIME__``, in seconds since 1970."""
DEPENDENCY_VARIABLES = ("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES")
_MAKE_NAMES = {
    *("MAKEFLAGS", "GNUMAKEFLAGS", "MFLAGS", "MAKELEVEL", "MAKEFILES", "MAKEOVERRIDES"),
    *("MAKE_TERMOUT", "MAKE_TERMERR"),
}
_COLLECT_PREFIX = "COLLECT_"
"""Variables that make sets for its programs, and gcc for its parts."""


def hashed_variables(
    environment: Mapping[str, str], *, epoch: bool = True, driver: bool = False
) -> list[str]:
    """Return the names of the variables that change the output or messages of compilers, sorted.

    Args:
        epoch: True to include ``SOURCE_DATE_EPOCH``. Preprocessed text has no ``__DATE__`` and
            ``__TIME__`` any more: nightlies of several days share the results of its steps.
        driver: True for nvcc as a whole, False for one of its steps.
    """
    return sorted(
        name
        for name in environment
        if (_is_read_by_steps(name) or (driver and _is_read_by_driver(name)))
        and (epoch or name != EPOCH)
    )


def _is_read_by_steps(name: str) -> bool:
    if name in _STEP_NAMES or name.endswith("_INCLUDE_PATH"):
        return True
    if not name.startswith(_STEP_PREFIXES) or name.startswith(_UNREAD_PREFIXES):
        return False
    tool, _, rest = name.partition("_")
    return bool(rest) and not (tool in _DRIVER_TOOLS and rest in {"PATH", "FLAGS"})


def _is_read_by_driver(name: str) -> bool:
    if name in _DRIVER_NAMES or name.startswith(_DRIVER_PREFIX):
        return True
    words = name[1:-1].split("_")
    return (
        name.startswith("_")
        and name.endswith("_")
        and len(words) <= _MOST_WORDS
        and all(word.isascii() and word.isalpha() and word.isupper() for word in words)
    )


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a query of a program's version and settings.

    The reply is part of keys, and must not change with the jobs and the variables of make: gcc
    prints ``MAKEFLAGS`` with ``-###`` if no jobserver can be reached. Compilers that are scripts
    need all other variables.
    """
    kept = {
        name: text
        for name, text in environment.items()
        if name not in _MAKE_NAMES and not name.startswith(_COLLECT_PREFIX)
    }
    return {**kept, "LC_ALL": "C"}


def depfile_variable(environment: Mapping[str, str]) -> str:
    """Return the variable by which the preprocessor writes a depfile, or ""."""
    return next((name for name in DEPENDENCY_VARIABLES if environment.get(name)), "")


def debug_folder(cwd: Path | str, environment: Mapping[str, str]) -> str:
    """Return the working folder as compilers name it in debug information."""
    # gcc and clang take the name in PWD if it leads to the working folder.
    named = environment.get("PWD", "")
    try:
        is_same = named.startswith("/") and os.path.samefile(named, cwd)
    except OSError:
        is_same = False
    return named if is_same else str(cwd)
