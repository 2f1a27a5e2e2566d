"""From ``recipe.toml`` to `Recipe`: what to build, for which targets, under which names.

``recipes/README.md`` documents the file for those who write one.
"""

from __future__ import annotations

from splitter.recipe.finished import SplitRecipe
from splitter.recipe.finished_policies import applied_to_finished
from splitter.recipe.interface import interface_hash
from splitter.recipe.load import load_recipe
from splitter.recipe.load_finished import load_split_recipe
from splitter.recipe.policies import applied
from splitter.recipe.policy import Policy
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

__pure__ = True

__all__ = [
    "Author",
    "Compile",
    "Install",
    "Interface",
    "Link",
    "Policy",
    "Project",
    "Python",
    "Recipe",
    "Source",
    "SplitRecipe",
    "Targets",
    "applied",
    "applied_to_finished",
    "interface_hash",
    "load_recipe",
    "load_split_recipe",
]
