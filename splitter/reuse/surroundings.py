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
EPOCH = "SOURCE_DATE_EPOCH"
"""Says what time it is, to sources that ask."""
_WRITES = {"DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES"}


def environment_parts(environment: Mapping[str, str], *, dated: bool = True) -> tuple[Part, ...]:
    """The variables that change what compilers make, or what they say.

    Args:
        dated: whether ``SOURCE_DATE_EPOCH`` may. ``__DATE__`` and ``__TIME__`` say it, which are
            no more in preprocessed text: nightlies of several days share what is made of it.
    """
    names = sorted(name for name in environment if _COUNTS.fullmatch(name))
    names = [name for name in names if dated or name != EPOCH]
    return tuple(Part(f"environment {name}", environment[name]) for name in names)


def writes_elsewhere(environment: Mapping[str, str]) -> bool:
    """Whether a variable makes the preprocessor write files that nobody knows of."""
    return any(environment.get(name) for name in _WRITES)
