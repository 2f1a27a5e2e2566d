"""From ``recipe.toml`` to `Recipe`: what to build, for which targets, under which names.

``recipes/README.md`` documents the file for those who write one.
"""

from __future__ import annotations

from splitter.recipe.interface import interface_hash
from splitter.recipe.load import load_recipe
from splitter.recipe.project import Author, Project
from splitter.recipe.tables import (
    Compile,
    Install,
    Interface,
    Link,
    Python,
    Recipe,
    Source,
    Targets,
)

__all__ = [
    "Author",
    "Compile",
    "Install",
    "Interface",
    "Link",
    "Project",
    "Python",
    "Recipe",
    "Source",
    "Targets",
    "interface_hash",
    "load_recipe",
]
