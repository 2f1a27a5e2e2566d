"""Children that die just before a change of theirs to the disk."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from archsplit.system.fs import atomic_replace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHANGES = {
    *("os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.symlink"),
    *("os.chmod", "os.chown", "os.truncate"),
}
WRITES = os.O_WRONLY | os.O_RDWR


def is_killed(action: Callable[[], object], at: int) -> bool:
    """Do something in a child that dies just before its change number ``at``."""
    child = os.fork()
    if child == 0:
        count = [0]

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            flags = arguments[2] if event == "open" else 0
            if event in CHANGES or (isinstance(flags, int) and flags & WRITES):
                count[0] += 1
                if count[0] > at:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        try:
            action()
        except BaseException as error:  # noqa: BLE001 - a child that may not return
            sys.stderr.write(f"{error!r}\n")
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in {0, -signal.SIGKILL}, status
    return status != 0


def leave_half_an_output(path: Path) -> set[Path]:
    """Write an output in a child that is killed; return what the child leaves beside it."""
    before = set(path.parent.iterdir())
    child = os.fork()
    if child == 0:
        with atomic_replace(path) as temporary:
            temporary.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    return set(path.parent.iterdir()) - before
