"""Completion scripts of shells, made of the command line's parser by ``shtab``.

In: the parser with all verbs. Out: a script for bash, zsh or tcsh, which knows verbs, options,
choices, files and folders, and starts no Python when the user presses Tab.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHELLS = ("bash", "zsh", "tcsh")
_FOLDERS = {"folder", "out", "site_packages", "cache_dir", "save"}
_FILES = {"subject", "old", "new", "gpus"}
"""Arguments that take a path or something else, such as the name of a package."""


def completion_script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the completion of a shell; the parser is changed."""
    from pathlib import Path

    import shtab

    for action in _actions(parser):
        # shtab leaves out what has no help; the list of verbs has it in the epilog.
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            action.help, action.metavar = "a verb", None
        elif action.dest in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined] # shtab reads it
        elif action.type is Path or action.dest in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab reads it
    return f"{shtab.complete(parser, shell)}\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            # Aliases share one parser.
            for inner in dict.fromkeys(action.choices.values()):
                yield from _actions(inner)
