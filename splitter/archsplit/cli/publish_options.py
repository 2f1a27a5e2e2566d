"""The options of ``archsplit publish``, and how their values are read."""

from __future__ import annotations

import argparse
from pathlib import Path

from archsplit.errors import UsageError
from archsplit.index.rules import FILE_BYTES, NAMES_A_DAY, PROJECT_BYTES
from archsplit.system.units import parse_size


def add_places(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which index, and where it is read."""
    places = parser.add_mutually_exclusive_group()
    places.add_argument(
        "--repository", metavar="NAME", help="pypi, testpypi, or a section of ~/.pypirc"
    )
    places.add_argument("--repository-url", metavar="URL", help="where uploads go")
    parser.add_argument(
        "--index-url", metavar="URL", help="where pip finds what was uploaded (default: found out)"
    )
    parser.add_argument(
        "--extra-index-url",
        action="append",
        default=[],
        metavar="URL",
        help="another index for what the core requires besides its plugins",
    )
    parser.add_argument("--config-file", type=Path, metavar="FILE", help="instead of ~/.pypirc")


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what the index allows."""
    parser.add_argument(
        "--rules",
        choices=["auto", "public", "private"],
        default="auto",
        help=f"public: {NAMES_A_DAY} new names in 24 hours, no local versions, no linux_* tags;"
        " private: none of it; auto: public for PyPI and TestPyPI (default: %(default)s)",
    )
    parser.add_argument(
        "--max-file-size",
        type=_size,
        default=FILE_BYTES,
        metavar="SIZE",
        help="how big a file may be (default: 100 MB)",
    )
    parser.add_argument(
        "--max-project-size",
        type=_size,
        default=PROJECT_BYTES,
        metavar="SIZE",
        help="how big all files of a project may be, with what is there (default: 10 GB)",
    )
    parser.add_argument(
        "--names-per-day",
        type=_count,
        metavar="N",
        help="how many projects may be new within 24 hours (default: what --rules says)",
    )


def add_patience(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how long to wait, and for what."""
    parser.add_argument(
        "--patience",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long one thing may go on failing, or stay hidden by caches (default: 300)",
    )
    parser.add_argument(
        "--upload-timeout",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long one attempt may take, besides 10 s for each MB (default: 300)",
    )
    parser.add_argument(
        "--no-download",
        action="store_true",
        help="believe the digests that the index lists, instead of reading every byte back",
    )


def _size(text: str) -> int:
    try:
        size = parse_size(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size of a byte or more")
    return size


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of names")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
