"""Verbs of the command line: their groups, their one-line descriptions, their parsers.

In comes a name, out comes a parser with the description of that name and its examples. All
parsers raise `UsageError` where argparse would print its usage and exit.
"""

from __future__ import annotations

import argparse
import difflib
import re
from typing import TYPE_CHECKING

from archsplit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import NoReturn

    from _typeshed import SupportsWrite

    from archsplit.cli.options import Verbs

VERB_GROUPS: Mapping[str, Mapping[str, str]] = {
    "look into device code": {
        "inspect": "show the device code in a file, folder or package",
        "diff": "show the growth between builds or releases, and limit it",
        "advise": "propose targets for the GPUs that users have",
    },
    "make existing wheels smaller": {
        "slim": "remove device code from a library, wheel or environment",
        "split": "split a fat wheel into a core and one small wheel per kind of GPU",
        "join": "make the fat libraries again, from a core and all its packs",
    },
    "build from sources": {
        "init": "write a first recipe for a source tree",
        "build": "build the core wheel and one plugin wheel per target",
        "plan": "print the steps of a build, and run nothing",
        "remote": "check a build farm or a cluster, or run the steps of other machines' builds",
        "nvcc": "compile as nvcc does, with its steps in parallel and cached",
        "cache": "explain, count, trim, check or move the compile cache",
    },
    "release": {
        "verify": "read every wheel of a folder again, and check it",
        "gather": "put the parts of one release, built in several places, into one folder",
        "publish": "upload a release to a package index, the core last",
        "index": "keep a static package index: a folder for any web server or object store",
        "mirror": "mirror the wheels of a lock without the device code of other GPUs",
    },
    "use": {
        "install": "install a core with the plugins for this machine's GPUs",
        "doctor": "print which plugin serves which GPU for an installed core",
    },
}
VERBS: Mapping[str, str] = {
    name: text for group in VERB_GROUPS.values() for name, text in group.items()
}
"""All verbs, each a module of this package, with their descriptions."""
SHARED_MODULES: Mapping[str, str] = {"gather": "publish:add_gather", "join": "split:add_join"}
"""Module and function of the verbs that share a module with others of their kind."""


_HELP = "see: archsplit help"
_MESSAGES = (
    (r"the following arguments are required: (.*)", r"missing: \1"),
    (r"unrecognized arguments: (-\S*).*", r"unknown option \1"),
    (r"unrecognized arguments: (\S*).*", r"unexpected argument \1"),
    (r"argument (\S*): expected .*", r"\1 needs a value"),
    (r"argument (\S*): invalid int value: (.*)", r"\1: \2 is not a whole number"),
    (r"argument (\S*: .*)", r"\1"),
)
"""Messages of argparse, and archsplit's."""


class VerbParser(argparse.ArgumentParser):
    """A parser whose faults are exceptions."""

    def error(self, message: str) -> NoReturn:
        """Raise the fault that argparse found.

        Raises:
            UsageError: always.
        """
        found = ((re.fullmatch(pattern, message), text) for pattern, text in _MESSAGES)
        text = next((match.expand(text) for match, text in found if match), message)
        raise UsageError(text, hint=f"{_HELP} {self.prog.partition(' ')[2]}".rstrip())

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        # argparse's ignores errors, such as the one of a full disk without a buffer.
        print(message, end="", file=file)

    def _check_value(self, action: argparse.Action, value: str) -> None:
        choices = list(action.choices or (value,))
        if value not in choices:
            hint = _nearest(value, choices) or f"use {', '.join(choices[:-1])} or {choices[-1]}"
            name = self.prog.partition(" ")[2]
            text = f"unknown command '{name} {value}'"
            if action.option_strings:
                text = f"{action.option_strings[0]} can't be {value!r}"
            raise UsageError(text, hint=hint)


def add_verb(
    verbs: Verbs, name: str, *examples: str, description: str = "", usage: str | None = None
) -> argparse.ArgumentParser:
    """Return the parser of a verb, with its description and examples.

    Args:
        description: more than the line in the list of verbs.
        usage: the first line of help; None for the usual one.
    """
    text = VERBS[name]
    sentence = f"{text[0].upper()}{text[1:]}."
    lines = ["examples:", *(f"  {example}" for example in examples)]
    return verbs.add_parser(
        name,
        help=text,
        description=f"{sentence} {description}".rstrip(),
        epilog="\n".join(lines),
        formatter_class=_ExamplesFormatter,
        usage=usage,
    )


class _ExamplesFormatter(argparse.HelpFormatter):
    """Keeps the lines of examples, and fills all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)


def list_verbs() -> str:
    """Return the list of verbs in their groups."""
    width = max(map(len, VERBS))
    lines = []
    for title, verbs in VERB_GROUPS.items():
        lines += [f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in verbs.items()), ""]
    return "\n".join(lines).rstrip()


def check_verb(name: str, others: Iterable[str]) -> None:
    """Refuse an unknown command.

    Args:
        others: more names that are allowed.

    Raises:
        UsageError: has the nearest verb.
    """
    names = [*VERBS, *others]
    if name in names:
        return
    raise UsageError(f"unknown command {name!r}", hint=_nearest(name, names) or _HELP)


def _nearest(word: str, words: Iterable[str]) -> str:
    """Return a hint with the most similar word; "" if none is similar."""
    # Two dashes would make all options similar.
    names = {each.strip("-"): each for each in words}
    near = difflib.get_close_matches(word.strip("-"), names, n=1)
    return f"did you mean {names[near[0]]}?" if near else ""


def check_options(verb: str, words: Iterable[str], options: Collection[str]) -> None:
    """Refuse options that a verb does not have.

    It is done before argparse parses: a misspelled option would otherwise be reported as
    a missing argument.

    Args:
        verb: "" for the options before a verb.
        options: of the verb and of its own verbs.

    Raises:
        UsageError: has the nearest option.
    """
    for word in words:
        # Words after it are arguments, for example nvcc's.
        if word == "--":
            return
        if not word:
            raise UsageError("an argument is empty", hint="is a variable of the shell unset?")
        option = word.partition("=")[0]
        is_long = word.startswith("--")
        # argparse takes the beginning of an option for the option.
        if is_long and not any(each.startswith(option) for each in options):
            hint = _nearest(option, options) or f"{_HELP} {verb}".rstrip()
            raise UsageError(f"unknown option {option}", hint=hint)
