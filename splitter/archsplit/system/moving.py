"""Put finished files where they belong: all of them, or none."""

from __future__ import annotations

import contextlib
import shutil
import signal
from typing import TYPE_CHECKING

from archsplit.errors import OutputError
from archsplit.system.fs import input_errors, is_replaceable, output_errors, put_file, replacing
from archsplit.system.signals import STOPS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


def check_targets(folder: Path, names: Sequence[str]) -> None:
    """Refuse names under which something lies that a file can't replace.

    Raises:
        OutputError: names what is in the way.
    """
    for name in names:
        if (folder / name).is_dir():
            raise OutputError(
                f"can't write {folder / name}: a folder of that name is in the way",
                hint="remove it, or choose another folder with --out",
            )


def copy_into(source: Path, folder: Path) -> Path:
    """Copy a file into a folder, which is made, and return the copy's path.

    Raises:
        OutputError: it can't be written, or would be the file itself.
        InputError: the file can't be read.
    """
    target = folder / source.name
    if target.exists() and target.samefile(source):
        raise OutputError(f"{target} is the input", hint="choose another folder with --out")
    check_targets(folder, (source.name,))
    with output_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with (
        replacing(target) as new,
        input_errors(source),
        source.open("rb") as old,
        new.open("wb") as file,
    ):
        shutil.copyfileobj(old, file)
    return target


def replace_all(names: Sequence[str], *, source: Path, target: Path) -> None:
    """Move files to ``target``, replacing what is there; on failure all is as it was.

    Both folders must be on one file system. Ctrl-C waits until it is done. What is there and no
    regular file is written to, after all others are moved: that can't be undone.

    Raises:
        OutputError: one of them can't be moved.
    """
    check_targets(target, names)
    moved: list[str] = []
    names = sorted(names, key=lambda name: not is_replaceable(target / name))
    with _undisturbed():
        try:
            for name in names:
                with output_errors(target / name):
                    _set_aside(name, source=source, target=target)
                    put_file(source / name, target / name)
                moved.append(name)
        except BaseException:
            for name in names[: len(moved) + 1]:
                _put_back(name, source=source, target=target, moved=name in moved)
            raise


def _set_aside(name: str, *, source: Path, target: Path) -> None:
    if (target / name).exists() and is_replaceable(target / name):
        (target / name).replace(source / f"{name}.before")


def _put_back(name: str, *, source: Path, target: Path, moved: bool) -> None:
    with contextlib.suppress(OSError):
        if moved and is_replaceable(target / name):
            (target / name).unlink()
        if (source / f"{name}.before").exists():
            (source / f"{name}.before").replace(target / name)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold back signals that end a program; they come when it is over."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
