"""Files of a command line: checked inputs, and outputs that several verbs write.

Inputs are checked before all other work. A message about a missing file has the next step: the
project's wheel can be downloaded, the installed project can be inspected, the folder has the wheel.

``NAME==VERSION`` and the URL of a wheel become a file in a folder of the cache. pip downloads it,
or uv's pip if this Python has no pip: so the index, the credentials and the proxies come from
their own settings.

Outputs are the findings of a check, as SARIF or JUnit XML for CI systems, and the copies of
unchanged inputs that ``--copy`` of ``split`` and ``slim`` passes through.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.cli.options import say, show_activity
from archsplit.errors import BudgetError, InputError, UsageError, VerifyError, WheelError
from archsplit.system.env import without_credentials, without_passwords
from archsplit.system.finding import Finding, junit_report, sarif_report
from archsplit.system.fs import copy_into, input_errors, output_errors, read_file, write_file
from archsplit.system.installers import pip_command, refuse_offline

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console

    from archsplit.errors import NothingToDoError

_PROJECT = re.compile(r"[A-Za-z0-9][\w.-]*")
_ENDINGS = (".whl", ".so", ".a", ".o", ".fatbin", ".cubin", ".pack", ".toml", ".md", ".txt")


_URL = re.compile(r"(https?):/+")
_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")
_VERSIONS = re.compile(r"\(from versions: (?:none|(.*?))\)")
_SAVED = re.compile(r"(?:Saved|File was already downloaded) (.+\.whl)")
_NEWEST, _LINES = 5, 4


def find_file(path: Path, console: Console) -> Path:
    """Return the path of an input file; a wheel of the index is fetched.

    Raises:
        InputError: the path does not exist, is a folder, or can't be read.
        ArchsplitError: see `fetch_wheel`.
    """
    if is_on_index(str(path)):
        return fetch_wheel(str(path), console)
    mode = _readable_mode(path)
    if stat.S_ISDIR(mode):
        first = "".join(f", such as {each}" for each in sorted(path.glob("*.whl"))[:1])
        raise InputError(f"{path} is a folder, not a file", hint=f"name a file in it{first}")
    if not mode:
        raise _missing_input(str(path), sys.path)
    return path


def read_text(path: Path, hint: str | None = None) -> str:
    """Return the text of a file.

    Raises:
        InputError: it can't be read, or is not UTF-8.
    """
    try:
        return read_file(path).decode()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8", hint=hint) from None


def check_path(path: Path) -> None:
    """Refuse a path that does not exist.

    Raises:
        InputError: it does not exist, or can't be read.
    """
    if not _readable_mode(path):
        raise InputError(f"no such file or folder: {path}", hint=_near(path))


def check_folder(path: Path) -> None:
    """Refuse what is not a folder.

    Raises:
        InputError: the path does not exist, is a file, or can't be read.
    """
    mode = _readable_mode(path)
    if not mode:
        raise InputError(f"no such folder: {path}", hint=_near(path))
    if not stat.S_ISDIR(mode):
        raise InputError(f"{path} is not a folder", hint=f"name the folder: {path.parent}")


def _readable_mode(path: Path) -> int:
    """Return the type and permissions of a path; 0 if it does not exist.

    A folder is listed, because a search in one without permission finds nothing, and says nothing.

    Raises:
        InputError: the path or a folder above it can't be read.
    """
    with input_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            os.scandir(path).close()
        return mode
    return 0


def find_subject(text: str, site_folders: Iterable[Path], console: Console) -> str:
    """Return a path or the name of an installed package; a wheel of the index is fetched.

    Raises:
        InputError: it is neither, or can't be read.
        ArchsplitError: see `fetch_wheel`.
    """
    from importlib.metadata import distributions

    if is_on_index(text):
        return str(fetch_wheel(text, console))
    folders = [str(folder) for folder in site_folders]
    if not _readable_mode(Path(text)) and not any(distributions(name=text, path=folders)):
        error = _missing_input(text, folders)
        # Often the package is in an environment that is not archsplit's own.
        if _PROJECT.fullmatch(text) and not text.endswith(_ENDINGS):
            error.hint = f"if it is installed elsewhere, add --site-packages DIR; {error.hint}"
        raise error
    return text


def _missing_input(text: str, folders: list[str]) -> InputError:
    """Return the error about a path that does not exist."""
    from importlib.metadata import distributions

    # A path with a folder or an ending can't be a project's name: look for a similar file instead.
    if not _PROJECT.fullmatch(text) or text.endswith(_ENDINGS):
        return InputError(f"no such file: {text}", hint=_near(Path(text)))
    if installed := next(iter(distributions(name=text, path=folders)), None):
        return InputError(
            f"no such file: {text} (version {installed.version} is installed)",
            hint=f"archsplit inspect {text} shows its device code; for its wheel, name"
            f" {text}=={installed.version}",
        )
    return InputError(
        f"no such file or installed package: {text}",
        hint=f"for its wheel, name {text}==VERSION, or: pip download --no-deps {text}",
    )


def _near(path: Path) -> str:
    """Return a hint with the most similar name in the same folder."""
    import difflib

    # The folder itself is missing, so no name in it can be similar.
    if not path.parent.is_dir():
        return f"its folder is missing: {path.parent}"
    names = [each.name for each in path.parent.iterdir()]
    near = difflib.get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / near[0]}?" if near else f"see its folder: ls {path.parent}"


def is_on_index(text: str) -> bool:
    """Return True for a URL, or a project with a version; a path is neither."""
    return bool(_URL.match(text) or _PINNED.fullmatch(text)) and not Path(text).exists()


def fetch_wheel(text: str, console: Console) -> Path:
    """Download a wheel unless the cache has it, and return its path.

    Args:
        text: see `is_on_index`; a URL may have lost a slash to `Path`.
        console: shows the progress, if it is a terminal.

    Raises:
        InputError: the index has no such wheel, or can't be reached.
        UsageError: a URL is not the one of a wheel.
        ToolNotFoundError: there is neither pip nor uv.
    """
    from archsplit.cache.config import resolve_settings
    from archsplit.cache.local import downloads_folder, mark_download, trim_downloads
    from archsplit.system.process import Command, SubprocessRunner

    subject = _URL.sub(r"\1://", text, count=1)
    shown = without_passwords(subject)
    # pip would build a source distribution, and so run code of the index.
    if _URL.match(text) and not subject.partition("#")[0].endswith(".whl"):
        raise UsageError(f"{shown} is not the URL of a wheel", hint="download the file first")
    settings = resolve_settings(os.environ)
    target = downloads_folder(settings.folder)
    with output_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    words = (*pip_command(os.environ), "download", "--no-deps", "--only-binary=:all:")
    environment = {"PIP_RETRIES": "1", **without_credentials(os.environ), "PIP_PROGRESS_BAR": "off"}
    argv = (*words, "--dest", str(target), subject)
    command = Command(argv=argv, cwd=Path.cwd(), env=environment)
    with show_activity(console, f"fetching {shown}"):
        done = SubprocessRunner().run(command)
    # pip compares a file that is there with the index's digest, and downloads it again if need be.
    saved = _SAVED.findall(done.stdout)
    if done.returncode != 0 or not saved:
        refuse_offline(done.stderr, subject=shown)
        raise _download_error(shown, done.stderr or done.stdout)
    path = target / Path(saved[-1]).name
    mark_download(path)
    trim_downloads(settings.folder, maximum=settings.max_size, keep=path)
    say(console, f"Fetched {path}")
    return path


def _download_error(subject: str, log: str) -> InputError:
    """Return the error for pip's log: the versions that there are, or pip's own lines."""
    name = subject.partition("==")[0]
    if found := _VERSIONS.search(log):
        versions = (found[1] or "").split(", ")
        newest = f"the newest are {', '.join(versions[-_NEWEST:])}" if found[1] else None
        python = ".".join(map(str, sys.version_info[:2]))
        # pip also lists versions with only a source distribution, but not other platforms' wheels.
        return InputError(
            f"the index has no wheel of {subject} for Python {python} on this machine",
            hint=newest or f"check the name {name}, and the index: pip config list shows it",
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    # pip's advice about its own version would hide the reason.
    lines = [line for line in lines if not line.startswith(("WARNING", "hint:"))]
    text = without_passwords("\n  ".join(lines[-_LINES:]))
    return InputError(
        f"{subject} can't be downloaded:\n  {text}", hint="pip config list shows the index in use"
    )


@contextlib.contextmanager
def finding_files(arguments: argparse.Namespace, *, check: str, checked: str) -> Iterator[None]:
    """Write the files when the block ends, with the findings that it raises.

    Args:
        arguments: with ``sarif`` and ``junit``.
        check: the verb.
        checked: the path of the checked file or folder.
    """
    try:
        yield
    except (BudgetError, VerifyError) as error:
        own = getattr(error, "findings", ())
        # A limit of the whole has no records: its message is the finding.
        hint = error.hint or ""
        whole = Finding(code="limit", subject="", found=error.message, expected="", hint=hint)
        _write(arguments, own or (whole,), check=check, checked=checked)
        raise
    _write(arguments, (), check=check, checked=checked)


def _write(
    arguments: argparse.Namespace, findings: Sequence[Finding], *, check: str, checked: str
) -> None:
    if arguments.sarif is not None:
        write_file(arguments.sarif, sarif_report(findings, checked=checked))
    if arguments.junit is not None:
        write_file(arguments.junit, junit_report(findings, checked=checked, check=check))


@contextlib.contextmanager
def record_hint(*wheels: Path) -> Iterator[None]:
    """Add a hint to the error about a wheel whose RECORD is wrong."""
    from archsplit.wheels.reader import is_sound_without_record

    try:
        yield
    except WheelError as error:
        if any(map(is_sound_without_record, wheels)):
            error.hint = "pip installs it; --ignore-record accepts it, and writes a correct RECORD"
        raise


def copy_unchanged(source: Path, out: Path, nothing: NothingToDoError, console: Console) -> Path:
    """Copy a file without device code to remove, and print the reason.

    Raises:
        OutputError: the copy can't be written.
    """
    target = copy_into(source, out)
    # The hint of the error names --copy, which was given.
    reason = str(nothing).partition("\nhint: ")[0]
    say(console, f"Copied the file as it is: {reason}")
    return target
