"""A command on a small disk of its own that is full, in a mount namespace."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

UNSHARE = ("unshare", "--mount", "--map-root-user")
needs_mounts = pytest.mark.skipif(
    subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode != 0,
    reason="this system permits no mounts",
)
_SCRIPT = """
mount -t tmpfs -o size={size} none {disk}
cp -r {before} {disk}/out
mkdir {disk}/tmp
head -c {size} /dev/zero >{disk}/ballast 2>{log} || true
truncate -s -{free} {disk}/ballast
set +e
{command}
code=$?
rm {disk}/ballast
cp -r {disk}/. {after}
exit $code
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run on a full disk.

    Attributes:
        before: digests of the files that lay on the disk, by name.
        after: of those that lie there afterwards.
        left: names of what else is on the disk.
    """

    code: int
    stderr: str
    before: dict[str, str]
    after: dict[str, str]
    left: tuple[str, ...]


def run_on_full_disk(
    folder: Path, argv: tuple[str, ...], *, outputs: Path, free: int, **variables: str
) -> Run:
    """Run a command whose outputs and temporary files are on a disk with little space left.

    Args:
        argv: ``{out}`` stands for the folder of outputs.
        outputs: an earlier run's, which lie in that folder.
        free: bytes.
    """
    disk, after = folder / "disk", folder / f"after-{free}"
    disk.mkdir(exist_ok=True)
    after.mkdir()
    command = shlex.join(word.format(out=disk / "out") for word in argv)
    places = {"disk": disk, "before": outputs, "after": after, "log": folder / "log"}
    quoted = {name: shlex.quote(str(path)) for name, path in places.items()}
    script = _SCRIPT.format(size=32 << 20, free=free, command=command, **quoted)
    done = subprocess.run(
        [*UNSHARE, "sh", "-ec", script],
        env={**os.environ, "TMPDIR": str(disk / "tmp"), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    left = [path for name in (".", "tmp") for path in (after / name).iterdir()]
    return Run(
        code=done.returncode,
        stderr=done.stderr,
        before=_digests(outputs),
        after=_digests(after / "out"),
        left=tuple(sorted({path.name for path in left} - {"out", "tmp"})),
    )


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }
