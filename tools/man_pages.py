"""Man pages of both commands, made of the command line's own parser.

``python tools/man_pages.py`` writes them into ``docs/man``, from where the wheel takes them;
``--check`` compares. Source of the macros: man(7).
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from written_files import ROOT, write_or_check

from archsplit.cli.main import exit_codes, whole_parser
from archsplit.cli.nvcc import OPTIONS_VARIABLE
from archsplit.cli.verbs import VERB_GROUPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FOLDER = ROOT / "docs" / "man"


def archsplit_page() -> str:
    """Return the page of archsplit: a section for each group of verbs."""
    parser = whole_parser()
    parsers = _verbs(parser)
    lines = [
        *_head("archsplit", parser.description or ""),
        ".SH SYNOPSIS",
        ".B archsplit",
        "[\\-\\-version] [\\-\\-help] VERB ...",
        ".SH OPTIONS",
        *_options(parser),
    ]
    for title, verbs in VERB_GROUPS.items():
        lines.append(f'.SH "{title.upper()}"')
        for name in verbs:
            lines += _verb(f"archsplit {name}", parsers[name])
    codes = (line.split(maxsplit=1) for line in exit_codes().splitlines()[1:])
    lines.append('.SH "EXIT STATUS"')
    for code, meaning in codes:
        lines += [".TP", f".B {code}", _text(meaning)]
    lines += [".SH SEE ALSO", ".BR archsplit\\-nvcc (1),", ".BR pip (1)"]
    return "\n".join([*lines, ""])


def nvcc_page() -> str:
    """Return the page of archsplit-nvcc, which has the options of ``archsplit nvcc``."""
    own = _verbs(whole_parser())["nvcc"]
    lines = [
        *_head("archsplit-nvcc", own.description or ""),
        ".SH SYNOPSIS",
        ".B archsplit\\-nvcc",
        "[NVCC] NVCC_ARGS ...",
        ".SH DESCRIPTION",
        "All arguments belong to nvcc. A first argument that is the path or the name of nvcc names",
        "the real nvcc, as compiler launchers such as CMAKE_CUDA_COMPILER_LAUNCHER pass it.",
        ".SH ENVIRONMENT",
        ".TP",
        f".B {OPTIONS_VARIABLE}",
        "The options of",
        '.BR "archsplit nvcc" ,',
        "as on a command line:",
        ".SS Options",
        *_options(own),
        ".SH SEE ALSO",
        ".BR archsplit (1)",
    ]
    return "\n".join([*lines, ""])


def _head(name: str, sentence: str) -> Iterator[str]:
    short = sentence.partition(". ")[0].rstrip(".")
    # No date and no version: the page changes only with the options.
    yield f'.TH {_text(name.upper())} 1 "" archsplit "User Commands"'
    yield from (".SH NAME", f"{_text(name)} \\- {_text(short[:1].lower() + short[1:])}")


def _verb(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f'.SS "{_text(name)}"'
    yield _text(parser.description or "")
    yield from (".P", ".nf", _text(_usage(name, parser)), ".fi")
    yield from _options(parser)
    for each, inner in _verbs(parser).items():
        yield from _verb(f"{name} {each}", inner)
    if parser.epilog:
        yield from (".P", "Examples:", ".P", ".nf")
        yield from map(_text, parser.epilog.splitlines()[1:])
        yield ".fi"


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    words = [_metavar(action) for action in _shown(parser) if not action.option_strings]
    return " ".join([name, "[OPTIONS]", *words, *(["VERB ..."] if _verbs(parser) else [])])


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = argparse.HelpFormatter(prog=parser.prog)
    for action in _shown(parser):
        # argparse writes "-j N, --jobs N" or "-j, --jobs N", as its release is.
        words = ", ".join(action.option_strings)
        value = "" if action.nargs == 0 else _metavar(action)
        yield from (".TP", f".B {_text(f'{words} {value}'.strip())}")
        # The public method formats whole sections; a page needs the text of one option.
        yield _text(formatter._expand_help(action) if action.help else "")  # noqa: SLF001


def _shown(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them
        is_verbs = isinstance(action, argparse._SubParsersAction)  # noqa: SLF001
        if not is_verbs and action.help is not argparse.SUPPRESS:
            yield action


def _metavar(action: argparse.Action) -> str:
    choices = f"{{{','.join(map(str, action.choices))}}}" if action.choices else ""
    # A tuple names each of several values.
    name = " ".join([action.metavar] if isinstance(action.metavar, str) else action.metavar or ())
    option = action.dest.upper() if action.option_strings else action.dest
    word = name or choices or option
    return f"[{word}]" if action.nargs in ("?", "*") else word


def _verbs(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to them
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return action.choices
    return {}


def _text(text: str) -> str:
    """Return a text that roff prints as it is."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...")
    # A line that begins with a point or an apostrophe would be a request.
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


PAGES = {"archsplit.1": archsplit_page, "archsplit-nvcc.1": nvcc_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; return the exit code."""
    pages = {FOLDER / name: page() for name, page in PAGES.items()}
    return write_or_check(pages, arguments, source="the command line", tool="man_pages.py")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
