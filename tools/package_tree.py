"""Tree in the architecture page, made of the packages' first sentences.

``python tools/package_tree.py`` writes it into the page; ``--check`` compares the two.
"""

from __future__ import annotations

import ast
import sys
from typing import TYPE_CHECKING

from written_files import ROOT, write_or_check

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "explanation" / "architecture.md"
BEGIN, END = "<!-- tree: written by tools/package_tree.py -->\n", "<!-- end of tree -->\n"
SOURCES = {"splitter/archsplit": "archsplit", "plugin_loader/archsplit_loader": "archsplit_loader"}
# The column of the sentences: two more than the longest path.
_WIDTH = 32


def tree() -> str:
    """Return the tree as a block of Markdown."""
    lines = ["```text"]
    for folder in SOURCES:
        package = ROOT / folder
        lines.append(_line(f"{folder}/", package / "__init__.py"))
        modules = [path for path in package.glob("*.py") if not path.name.startswith("_")]
        # A link is a package of another root, which is listed there.
        packages = [path for path in package.glob("*/__init__.py") if not path.parent.is_symlink()]
        lines += [_line(f"  {path.name}", path) for path in sorted(modules)]
        lines += [_line(f"  {path.parent.name}/", path) for path in sorted(packages)]
    return "\n".join([*lines, "```", ""])


def page(text: str) -> str:
    """Return the page's text with a new tree in place of the old one."""
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}{tree()}{END}{tail}"


def _line(name: str, path: Path) -> str:
    # Parsed, not imported: some modules need optional packages.
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return f"{name:{_WIDTH}}{docstring.partition(chr(10))[0]}".rstrip()


def main(arguments: list[str]) -> int:
    """Write the tree, or check it; return the exit code."""
    pages = {PAGE: page(PAGE.read_text(encoding="utf-8"))}
    return write_or_check(pages, arguments, source="the packages", tool="package_tree.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
