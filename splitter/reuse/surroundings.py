"""What programs depend on beside their arguments and files: the environment, as parts of keys."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from splitter.cache.parts import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

_COUNTS = re.compile(
    r"CPATH|\w+_INCLUDE_PATH|LIBRARY_PATH|COMPILER_PATH|SOURCE_DATE_EPOCH|LANG|LANGUAGE|LC_(?!TIME)\w+"
    r"|(?:GCC|CCC|CLANG|NVCC|CICC|PTXAS|NVVM(?!IR))_\w+"
)
_WRITES = {"DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"}


def environment_parts(environment: Mapping[str, str]) -> tuple[Part, ...]:
    """The variables that change what compilers make, or what they say."""
    names = sorted(filter(_COUNTS.fullmatch, environment))
    return tuple(Part(f"environment {name}", environment[name]) for name in names)


def writes_elsewhere(environment: Mapping[str, str]) -> bool:
    """Whether a variable makes the preprocessor write files that nobody knows of."""
    return any(environment.get(name) for name in _WRITES)
