"""Where a build happens: a recipe, the tools that were found for it, and a folder of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from splitter.nvcc.host import HostTools
    from splitter.nvcc.toolkit import Attempt, Toolkit
    from splitter.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSite:
    """What every stage of a build from sources works with.

    Attributes:
        tried: where nvcc was looked for, and what became of it.
        environment: what programs run in.
        folder: the build's private folder, gone afterwards.
        epoch: the time that all files carry, in seconds since 1970.
    """

    recipe: Recipe
    toolkit: Toolkit
    tried: tuple[Attempt, ...]
    host: HostTools
    environment: Mapping[str, str] = field(repr=False)
    folder: Path
    epoch: int
