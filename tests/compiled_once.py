"""Files that a C compiler makes once a run, for all tests that compile the same."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from pathlib import Path

FOLDERS: list[Path] = []
"""Folder of this run; `tests/conftest.py` adds it."""


def compile_once(output: Path, *arguments: str, inputs: tuple[bytes, ...] = ()) -> Path:
    """Compile, or copy what the same arguments and files have given in this run.

    Not for debug information, which has the names of folders.

    Args:
        inputs: contents of other files that the sources include.
    """
    digest = hashlib.sha256()
    for each in (*map(_subject, arguments), *inputs):
        digest.update(hashlib.sha256(each).digest())
    made = FOLDERS[-1] / digest.hexdigest()
    with made.with_suffix(".lock").open("w") as lock:
        # Without the lock, a second worker would compile the same, or take half of it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            subprocess.run(["gcc", "-o", str(output), *arguments], check=True)
            shutil.copy(output, made)
        else:
            shutil.copy(made, output)
    return output


def _subject(argument: str) -> bytes:
    path = Path(argument)
    if not path.is_file():
        return argument.encode()
    # Sources of assembly name the files beside them.
    content = path.read_bytes().replace(str(path.parent).encode(), b".")
    return path.name.encode() + b"\0" + content
