"""Objects of the loader's sources, compiled once a run for each set of flags.

30 sources take one to four CPU seconds, most of them under sanitizers, and a dozen of test files
link them with programs of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from compiled_once import FOLDERS

LOADER = Path(__file__).parents[1] / "plugin_loader"
_INCLUDED = re.compile(r'^#include "(.*)"$', re.MULTILINE)


def sources() -> list[str]:
    return sorted(map(str, (LOADER / "src").glob("*.c")))


def loader_objects(*flags: str, compiler: str = "gcc") -> list[str]:
    """Return position-independent objects of all sources.

    Sources that don't use a macro of ``-DNAME=...`` share their objects with other values of it.
    """
    groups: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for source in map(Path, sources()):
        text = _with_headers(source)
        groups[tuple(flag for flag in flags if _is_for(flag, text))].append(source)
    return sorted(each for own, paths in groups.items() for each in _compile(compiler, own, paths))


def _with_headers(source: Path) -> str:
    todo, read = [source], {source: ""}
    while todo:
        path = todo.pop()
        read[path] = path.read_text()
        headers = [path.parent / name for name in _INCLUDED.findall(read[path])]
        todo += [path for path in headers if path.exists() and path not in read]
    return "".join(read.values())


def _is_for(flag: str, text: str) -> bool:
    macro = re.match(r"-D(\w+)=", flag)
    return macro is None or re.search(rf"\b{macro[1]}\b", text) is not None


def _compile(compiler: str, flags: tuple[str, ...], paths: list[Path]) -> list[str]:
    key = hashlib.sha256("\0".join((compiler, *flags)).encode()).hexdigest()[:16]
    folder = FOLDERS[-1] / key
    folder.mkdir(exist_ok=True)
    objects = [folder / f"{path.stem}.o" for path in paths]
    with (folder / "lock").open("w") as lock:
        # Without the lock, a second worker would compile the same, or take half of it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        missing = [
            str(path) for path, made in zip(paths, objects, strict=True) if not made.exists()
        ]
        if missing:
            command = [compiler, "-c", "-fPIC", f"-I{LOADER / 'include'}", *flags, *missing]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return list(map(str, objects))
