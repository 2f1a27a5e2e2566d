"""Sphinx's configuration of the manual; `nox -s docs` builds it, and a warning is an error."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, ClassVar

import sphinxarg.ext

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

project = "archsplit"
author = "The archsplit authors"
copyright = author  # noqa: A001 (Sphinx's own name for it)
release = version = installed_version("archsplit")

extensions = ["myst_parser", "sphinxarg.ext"]
exclude_patterns = ["how-to/*/**"]  # the projects that the pages show
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"archsplit {release}"
html_theme_options = {
    "source_repository": "https://github.com/archsplit/archsplit/",
    "source_branch": "main",
    "source_directory": "docs/",
}


class VerbOptions(sphinxarg.ext.ArgParseDirective):
    """The options of a verb, from its parser: ``{options} split``."""

    required_arguments = 1
    final_argument_whitespace = True
    _SETTINGS: ClassVar = {
        "module": "archsplit.cli.main",
        "func": "whole_parser",
        "prog": "archsplit",
        "nodescription": True,
        "noepilog": True,
        "nodefault": True,
    }

    def run(self) -> list[nodes.Node]:
        """Return the usage and the table of options."""
        self.options |= {**self._SETTINGS, "path": self.arguments[0]}
        return super().run()


def render_help(texts: list[nodes.Node | str], *rest: object) -> list[nodes.Node]:
    """Render texts of an option, which are plain: the pattern ``compute_*`` has no markup."""
    plain = [re.sub(r"([*_|])", r"\\\1", each) if isinstance(each, str) else each for each in texts]
    return _render_list(plain, *rest)  # type: ignore[no-any-return]


_render_list = sphinxarg.ext.render_list


def setup(app: Sphinx) -> None:
    """Add the directive."""
    sphinxarg.ext.render_list = render_help
    app.add_directive("options", VerbOptions)
