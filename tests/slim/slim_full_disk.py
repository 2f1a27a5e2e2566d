"""Run a verb over earlier outputs on a disk that fills: ``slim_full_disk.py VERB FOLDER``.

To be run in a mount namespace of its own. Prints a line of JSON for each size of the free space:
the exit code, the error, and the earlier outputs that differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ARCHSPLIT = str(Path(sys.executable).parent / "archsplit")
DISK = 24 << 20
FREE = (0, 8 << 10, 40 << 10, 100 << 10, 200 << 10, 500 << 10, 2 << 20, 20 << 20)
DEVICE = ("--device", "9.0")


def archsplit(*words: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [ARCHSPLIT, *map(str, words)]
    settings = {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    environment = {**os.environ, **settings}
    return subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)


def outputs(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def slim(source: Path, out: Path) -> list[str | Path]:
    return ["slim", source, *DEVICE, "--out", out]


def lines(verb: str, inputs: Path, out: Path) -> tuple[list[str | Path], list[str | Path]]:
    """Return the words of the first run, and of the run on a full disk."""
    old, new = inputs / "old", inputs / "new"
    (wheel,), (newer,) = old.glob("fat-*.whl"), new.glob("fat-*.whl")
    if verb == "slim-file":
        return slim(old / "libfat.so", out), slim(new / "libfat.so", out)
    if verb == "slim-wheel":
        return slim(wheel, out), slim(newer, out)
    if verb in {"slim-site", "slim-undo", "slim-commit"}:
        shutil.copytree(inputs / "site", out / "site")
        words: list[str | Path] = ["slim", "--site-packages", out / "site"]
        slimmed = [*words, *DEVICE]
        is_first = verb == "slim-site"
        return (["--version"], slimmed) if is_first else (slimmed, [*words, f"--{verb[5:]}"])
    if verb == "mirror":
        other = next(inputs.glob("other-*.whl"))
        options = (*DEVICE, "--out", out)
        return ["mirror", wheel, *options], ["mirror", wheel, other, *options]
    if verb == "index":
        return ["index", out, "--add", wheel], ["index", out, "--add", inputs / "split"]
    source = wheel if verb == "split" else inputs / "split"
    words = [verb, source, "--out", out]
    return words, words


def main(verb: str, folder: Path) -> None:
    disk = folder / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", disk], check=True)
    os.environ["TMPDIR"] = str(disk)
    for free in FREE:
        out = disk / "out"
        out.mkdir()
        first, second = lines(verb, folder / "inputs", out)
        assert archsplit(*first).returncode == 0, archsplit(*first).stderr
        before = outputs(out)
        room = os.statvfs(disk)
        with (disk / "ballast").open("wb") as ballast:
            ballast.write(bytes(max(0, room.f_bavail * room.f_frsize - free)))
        done = archsplit(*second)
        (disk / "ballast").unlink()
        after = outputs(out)
        lost = sorted(name for name, digest in before.items() if after.get(name) != digest)
        found = {"free": free, "code": done.returncode, "lost": lost, "error": done.stderr[-800:]}
        found["again"] = 0
        if verb in {"mirror", "index"}:
            found["again"] = archsplit("index", out, "--check").returncode
        sys.stdout.write(json.dumps(found) + "\n")
        shutil.rmtree(out)
        if not done.returncode:
            return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
