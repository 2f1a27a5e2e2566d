"""Wheels of a package index as inputs: ``NAME==VERSION``, or the URL of a wheel.

In: the text of a command line. Out: the path of the wheel, in a folder of the cache. pip downloads
it, or uv's pip where this Python has none: so the index, the credentials and the proxies are those
of their own settings.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from archsplit.errors import InputError, UsageError
from archsplit.system.env import without_credentials
from archsplit.system.fs import output_errors, temporary_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

_URL = re.compile(r"(https?):/+")
_PINNED = re.compile(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+")
_USER = re.compile(r"//[^/@]*@")
_RAW_PROGRESS = (24, 1)
"""The first pip that writes its progress for programs. Source: pip's news, "24.1"."""
_RAW = re.compile(r"Progress (\d+) of (\d+)\s*$")
_TAIL = 4096
_VERSIONS = re.compile(r"\(from versions: (?:none|(.*?))\)")
_SAVED = re.compile(r"(?:Saved|File was already downloaded) (.+\.whl)")
_NEWEST, _LINES = 5, 4


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
    from archsplit.mirror.resolve import pip_command
    from archsplit.system.process import Command, SubprocessRunner

    subject = _URL.sub(r"\1://", text, count=1)
    shown = _USER.sub("//", subject)
    # pip would build a source distribution, and so run code of the index.
    if _URL.match(text) and not subject.partition("#")[0].endswith(".whl"):
        raise UsageError(f"{shown} is not the URL of a wheel", hint="download the file first")
    settings = resolve_settings({}, os.environ)
    target = downloads_folder(settings.folder)
    with output_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    with temporary_dir(target) as folder:
        log = folder / "log"
        pip = pip_command(os.environ)
        words = (*pip, "download", "--no-deps", "--only-binary=:all:", "--dest", str(target))
        # A program's output is kept to its end: the file shows the progress before.
        shell = ("/bin/sh", "-c", 'exec "$@" >"$0"', str(log))
        environment = {**without_credentials(os.environ), **_pip_settings()}
        command = Command(argv=(*shell, *words, subject), cwd=Path.cwd(), env=environment)
        with _progress(console, shown, log):
            done = SubprocessRunner().run(command)
        text = log.read_text(errors="replace")
    # pip compares a file that is there with the index's digest, and downloads it again if need be.
    saved = _SAVED.findall(text)
    if done.returncode != 0 or not saved:
        raise _download_error(shown, done.stderr or text)
    path = target / Path(saved[-1]).name
    mark_download(path)
    trim_downloads(settings.folder, maximum=settings.max_size, keep=path)
    console.print(f"reading {path}", markup=False, soft_wrap=True)
    return path


def _pip_settings() -> Mapping[str, str]:
    with contextlib.suppress(PackageNotFoundError, ValueError):
        numbers = tuple(map(int, version("pip").split(".")[:2]))
        if find_spec("pip") is not None and numbers >= _RAW_PROGRESS:
            return {"PIP_PROGRESS_BAR": "raw"}
    return {"PIP_PROGRESS_BAR": "off"}


def _download_error(subject: str, log: str) -> InputError:
    """Return the error for pip's log: the versions that there are, or pip's own lines."""
    name = subject.partition("==")[0]
    if found := _VERSIONS.search(log):
        versions = (found[1] or "").split(", ")
        newest = f"the newest are {', '.join(versions[-_NEWEST:])}" if found[1] else None
        python = ".".join(map(str, sys.version_info[:2]))
        # pip lists versions with a source distribution too, and those of other platforms not.
        return InputError(
            f"the index has no wheel of {subject} for Python {python} on this machine",
            hint=newest or f"is it {name} on the index in use? See: pip config list",
        )
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    # pip's advice about its own version would hide the reason.
    lines = [line for line in lines if not line.startswith(("WARNING", "hint:"))]
    text = _USER.sub("//", "\n  ".join(lines[-_LINES:]))
    return InputError(
        f"{subject} can't be downloaded:\n  {text}", hint="pip config list shows the index in use"
    )


@contextlib.contextmanager
def _progress(console: Console, subject: str, log: Path) -> Iterator[None]:
    """Show on a terminal how much of a download is done."""
    if not console.is_terminal:
        yield
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    end = threading.Event()
    with Progress(
        *columns, DownloadColumn(), TransferSpeedColumn(), console=console, transient=True
    ) as progress:
        task = progress.add_task(f"fetching {subject}", total=None)

        def follow() -> None:
            # Ten times a second: often enough for a display, and cheap.
            while not end.wait(0.1):
                if done := _read_progress(log):
                    progress.update(task, completed=done[0], total=done[1])

        follower = threading.Thread(target=follow)
        follower.start()
        try:
            yield
        finally:
            end.set()
            follower.join()


def _read_progress(log: Path) -> tuple[int, int] | None:
    """Return bytes and total from the last line of pip's log."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        if found := _RAW.search(file.read().decode(errors="replace").rstrip("\n")):
            return int(found[1]), int(found[2])
    return None
