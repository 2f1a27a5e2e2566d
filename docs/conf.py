"""Sphinx's configuration of the manual; `nox -s docs` builds it, and a warning is an error."""

from __future__ import annotations

import re
from importlib.metadata import version as installed_version
from pathlib import Path
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
    """Options of a verb, from its parser: ``{options} split``."""

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


ACCESSIBLE = {
    '<p class="caption" role="heading">': '<p class="caption" role="heading" aria-level="2">',
    '<aside class="sidebar-drawer">': '<aside class="sidebar-drawer" aria-label="Pages">',
    '<aside class="toc-drawer">': '<aside class="toc-drawer" aria-label="This page">',
    '<div class="content-icon-container">': (
        '<div class="content-icon-container" role="region" aria-label="Tools">'
    ),
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper ': '<div tabindex="0" class="table-wrapper ',
    '<th class="head"></th>': '<td class="head"></td>',
    '<th class="head"><p></p></th>': '<td class="head"></td>',
    '<div id="search-results">': '<h1>Search</h1><div id="search-results">',
}
"""Mends of the pages of Sphinx and Furo for keyboards and screen readers, as axe-core asks."""


def finish_pages(app: Sphinx, exception: Exception | None) -> None:
    """Mend the pages for keyboards and screen readers."""
    for path in [] if exception else Path(app.outdir).rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        for missing, mended in ACCESSIBLE.items():
            text = text.replace(missing, mended)
        path.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Add the directive, and what is done after the last page."""
    sphinxarg.ext.render_list = render_help
    app.add_directive("options", VerbOptions)
    app.connect("build-finished", finish_pages)
