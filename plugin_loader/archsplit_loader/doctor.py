"""``python -m <package>.doctor``: say what serves which GPU, and what to do where nothing does.

Exit status: 0 when every visible device is served, or when no GPU was found and nothing that is
installed is refused; 1 otherwise; 2 when the arguments are wrong.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from ._broken_core import BrokenCore
from ._copies import copy_warnings
from ._errors import PluginError, SettingError
from ._explain import Explanation, explain_core
from ._folders import FOLDER
from ._safe_text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Print the explanation; see the module for the exit status."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {__name__.partition('.')[0]}.doctor",
        description="Say which plugin serves which GPU, and what to do where none does.",
        epilog="exit status: 0 all is well, 1 something is wrong, 2 wrong arguments",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.add_argument(
        "--full", action="store_true", help="read all of every plugin, not only its index"
    )
    _add_install(parser)
    arguments = parser.parse_args(argv)
    if arguments.install:
        return _install(arguments)
    # Without --install they would be ignored, and the reader would wait for an effect.
    if arguments.dry_run or arguments.gpu or arguments.find_links or arguments.index_url:
        parser.error("--dry-run, --gpu, --find-links and --index-url go with --install")
    try:
        found = _explain(full=arguments.full)
    except SettingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _print(found.as_json() if arguments.json else found.text())
    return 0 if isinstance(found, Explanation) and found.healthy else 1


def _add_install(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("installation")
    group.add_argument(
        "--install",
        action="store_true",
        help="install the plugins that serve this machine's GPUs, with pip or uv; repair others",
    )
    group.add_argument("--dry-run", action="store_true", help="print the command, and run nothing")
    group.add_argument(
        "--gpu",
        action="append",
        default=[],
        metavar="9.0",
        help="install for this GPU, which may be elsewhere: 9.0, sm_90, H100; may be repeated",
    )
    group.add_argument(
        "--find-links",
        action="append",
        default=[],
        metavar="DIR|URL",
        help="take wheels from here (default: where the core and its plugins came from)",
    )
    group.add_argument("--index-url", metavar="URL", help="take wheels from this index")


def _install(arguments: argparse.Namespace) -> int:
    from ._install import InstallRequest, install  # noqa: PLC0415 (few ask for it)
    from ._origin import Source  # noqa: PLC0415 (the same)

    request = InstallRequest(
        gpus=tuple(gpu for text in arguments.gpu for gpu in text.split(",")),
        source=Source(tuple(arguments.find_links), arguments.index_url),
        dry_run=arguments.dry_run,
    )
    try:
        return install(request)
    except PluginError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _explain(*, full: bool) -> Explanation | BrokenCore:
    """Return the loader's explanation, or the report on a broken core."""
    try:
        found = explain_core(full=full)
        return replace(found, warnings=copy_warnings(), hint=_advice(found))
    except SettingError:
        raise
    except PluginError as error:
        return BrokenCore(str(error))
    except Exception as error:  # noqa: BLE001 (whatever is broken, this is who is asked about it)
        return BrokenCore(f"{type(error).__name__}: {error}; install the core again")


def _advice(found: Explanation) -> str | None:
    """Return the one command that installs what is missing, if one can."""
    missing = any(each.served.target is None and each.served.command for each in found.devices)
    return f"{_program()} --install installs what is missing" if missing else None


def _program() -> str:
    """Return the doctor's own command line; a project may have a module of that name itself."""
    package = os.path.dirname(FOLDER)
    try:
        with open(os.path.join(package, "doctor.py"), encoding="utf-8") as file:
            if "_archsplit" in file.read():
                return f"python -m {os.path.basename(package)}.doctor"
    except (OSError, ValueError):
        pass
    return f"python {shlex.quote(FOLDER)}"


def _print(text: str) -> None:
    """Whatever this terminal's encoding is, and whether or not anybody still reads."""
    text = printable(text)
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try again when it ends, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
