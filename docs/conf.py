"""Sphinx's configuration of the manual; `nox -s docs` builds it, and a warning is an error."""

from __future__ import annotations

from importlib.metadata import version as installed_version

project = "archsplit"
author = "The archsplit authors"
copyright = author  # noqa: A001 (Sphinx's own name for it)
release = version = installed_version("archsplit")

extensions = ["myst_parser", "sphinxarg.ext"]
exclude_patterns = ["how-to/*/**"]  # the projects that the pages show
myst_heading_anchors = 3
nitpicky = True

html_theme = "furo"
html_title = f"archsplit {release}"
html_theme_options = {
    "source_repository": "https://github.com/archsplit/archsplit/",
    "source_branch": "main",
    "source_directory": "docs/",
}
