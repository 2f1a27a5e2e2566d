"""Environment variables as components of keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from archsplit.cache.keys import KeyComponent

if TYPE_CHECKING:
    from collections.abc import Mapping


_STEPS = re.compile(
    r"CPATH|\w+_INCLUDE_PATH|L(?:IBRARY_)?PATH|COMPILER_PATH|SOURCE_DATE_EPOCH|LANG|LANGUAGE"
    r"|LC_(?!TIME)\w+|LD_(?:PRELOAD|AUDIT)|NVVMCCWIZ|USR_INCLUDE|CAN_FINALIZE_DEBUG"
    r"|(?:GCC|G\+\+|BINUTILS|CCC|CLANG|EDG|LLVM|LIBNVVM|NV_NVVM)_\w+"
    r"|(?:CICC|PTXAS|NVVM(?!IR))_(?!PATH$|FLAGS$)\w+"
)
"""Variables that the tools read: observed by tracing their calls of ``getenv``."""
_DRIVER = re.compile(
    r"NVCC_\w+|(?:CICC|CUDAFE|PTXAS|OCG|NVVM|NVLINK|FATBINARY|LLVMC|LLVMDIS|NVASM|NVDISASM)_FLAGS"
    r"|(?:SYSTEM_)?INCLUDES|LIBRARIES|CICC_PATH|NVVMIR_LIBRARY_DIR|TOP|_[A-Z]+(?:_[A-Z]+)?_"
    r"|compiler-bindir"
)
"""Variables that nvcc or its profile reads; steps have their values as arguments."""
EPOCH = "SOURCE_DATE_EPOCH"
"""Says what time it is, to sources that ask."""
_WRITES = {"DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"}
_MAKES = re.compile(
    r"(?:GNU)?MAKEFLAGS|MFLAGS|MAKE(?:LEVEL|FILES|OVERRIDES|_TERM(?:OUT|ERR))|COLLECT_\w+"
)
"""Variables that make sets for its programs, and gcc for its parts."""


def hashed_environment(
    environment: Mapping[str, str], *, dated: bool = True, driver: bool = False
) -> tuple[KeyComponent, ...]:
    """The variables that change what compilers make, or what they say.

    Args:
        dated: whether ``SOURCE_DATE_EPOCH`` may. ``__DATE__`` and ``__TIME__`` say it, which are
            no more in preprocessed text: nightlies of several days share what is made of it.
        driver: whether nvcc is asked, and not one of its steps alone.
    """
    patterns = (_STEPS, _DRIVER) if driver else (_STEPS,)
    names = sorted(name for name in environment if any(one.fullmatch(name) for one in patterns))
    names = [name for name in names if dated or name != EPOCH]
    return tuple(KeyComponent(f"environment {name}", environment[name]) for name in names)


def query_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a program is asked about itself.

    The answer is part of keys, and must not change with the jobs and the variables of make: gcc
    prints ``MAKEFLAGS`` with ``-###`` where no jobserver can be reached. Compilers that are scripts
    need all other variables.
    """
    given = {name: text for name, text in environment.items() if not _MAKES.fullmatch(name)}
    return {**given, "LC_ALL": "C"}


def has_extra_outputs(environment: Mapping[str, str]) -> bool:
    """Return True if a variable makes the preprocessor write unknown files."""
    return any(environment.get(name) for name in _WRITES)
