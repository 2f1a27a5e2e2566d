"""Verbs over an earlier output, in processes that are killed before each change to the disk.

``python verbs_killed.py FOLDER STEP`` kills each verb before every STEPth change, prints how many
kills there were, and ends with an error as soon as a file of the earlier output is missing, or is
neither the old nor the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main as archsplit
from killed_children import is_killed

if TYPE_CHECKING:
    from collections.abc import Sequence


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".archsplit-")
    }


def run(words: Sequence[str], epoch: int) -> None:
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    # Their reports are for users.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    code = archsplit(list(words))
    if code:
        raise SystemExit(code)


def killed(words: Sequence[str], out: Path, step: int) -> int:
    """Kill a verb at each of its changes; return the number of kills."""
    pid = os.fork()
    if pid == 0:
        run(words, 1700000000)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, words
    old = digests(out)
    assert old, words
    at = kills = 0
    while is_killed(partial(run, words, 1600000000), at):
        found = digests(out)
        assert old.keys() <= found.keys(), (words, at, sorted(old.keys() - found.keys()))
        changed = {name for name in old if found[name] != old[name]}
        for name in changed:
            assert (out / name).stat().st_size > 0, (words, at, name)
        at += step
        kills += 1
    new = digests(out)
    assert old.keys() <= new.keys(), words
    return kills


def main(folder: Path, step: int) -> None:
    place = folder / "in"
    place.mkdir()
    wheel = str(fat_wheel(place))
    library = str(place / "library/libsample.so")
    split = folder / "split"
    verbs = {
        "slim": (["slim", wheel, "--device", "9.0", "--out"], folder / "slim"),
        "slim-file": (["slim", library, "--device", "9.0", "--out"], folder / "file"),
        "split": (["split", wheel, "--out"], split),
        "gather": (["gather", str(split), "--out"], folder / "gathered"),
        "join": (["join", str(split), "--out"], folder / "joined"),
        "index": (["index", "--add", wheel], folder / "index"),
    }
    counts = {}
    for name, (words, out) in verbs.items():
        argv = [words[0], str(out), *words[1:]] if name == "index" else [*words, str(out)]
        counts[name] = killed(argv, out, step)
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
