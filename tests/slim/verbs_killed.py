"""Verbs over an earlier output, in processes that are killed before each change to the disk.

``python verbs_killed.py FOLDER STEP`` kills each verb before every STEPth change, prints how many
kills there were, and ends with an error as soon as a file of the earlier output is missing or
empty, or the same command afterwards leaves a file of the killed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main as archsplit
from archsplit.release.trial import Trial
from killed_children import is_killed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from archsplit.wheels.filename import WheelName


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).parts[0].startswith(".archsplit-")
    }


def run(words: Sequence[str], epoch: int) -> None:
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    # Their reports are for users.
    with Path(os.devnull).open("w") as nothing, contextlib.redirect_stdout(nothing):
        code = archsplit(list(words))
    if code:
        raise SystemExit(code)


def names(folder: Path) -> set[str]:
    """Return all names in a folder, with hidden ones."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def finish(words: Sequence[str], epoch: int) -> None:
    """Run a verb in a child, and import here what the child has imported, for later ones."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        run(words, epoch)
        with os.fdopen(writer, "w") as pipe:
            pipe.write("\n".join(sys.modules))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        names = pipe.read().split("\n")
    assert os.waitpid(pid, 0)[1] == 0, words
    for name in names:
        # Some modules have been put there under other names.
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def killed(words: Sequence[str], out: Path, step: int, earlier: Sequence[str]) -> int:
    """Kill a verb at each of its changes; return the number of kills."""
    finish(earlier, 1700000000)
    old = digests(out)
    assert old, words
    kept = out.with_name(f"{out.name}-kept")
    shutil.copytree(out, kept, symlinks=True)
    finish(words, 1600000000)
    complete = names(out)
    at = kills = 0
    while True:
        shutil.rmtree(out)
        shutil.copytree(kept, out, symlinks=True)
        if not is_killed(partial(run, words, 1600000000), at):
            break
        found = digests(out)
        assert old.keys() <= found.keys(), (words, at, sorted(old.keys() - found.keys()))
        for name in old:
            assert found[name] == old[name] or (out / name).stat().st_size > 0, (words, at, name)
        finish(words, 1600000000)
        assert names(out) == complete, (words, at, sorted(names(out) ^ complete))
        at += step
        kills += 1
    assert old.keys() <= digests(out).keys(), words
    return kills


def unpack(self: Trial, wheel: Path, name: WheelName, target: Path) -> None:
    """Stand in for pip, which takes longer than all else, and whose changes are not counted."""
    del self, name
    zipfile.ZipFile(wheel).extractall(target)


def main(folder: Path, step: int) -> None:
    Trial.install = unpack  # type: ignore[method-assign]
    place = folder / "in"
    place.mkdir()
    wheel = str(fat_wheel(place))
    second = str(fat_wheel(place, name="second-1-py3-none-manylinux_2_17_x86_64.whl"))
    library = str(place / "library/libsample.so")
    split, index = folder / "split", folder / "index"
    only_fat, both = folder / "fat.txt", folder / "both.txt"
    only_fat.write_text(f"--no-index\n--find-links {place}\nfat\n")
    both.write_text(f"{only_fat.read_text()}second\n")
    mirror = ["--lock-name", "all", "--device", "9.0", "--out"]
    verbs = {
        "slim": (["slim", wheel, "--device", "9.0", "--out"], folder / "slim"),
        "slim-file": (["slim", library, "--device", "9.0", "--out"], folder / "file"),
        "split": (["split", wheel, "--out"], split),
        "variants": (["split", wheel, "--variants", "--out"], folder / "variants"),
        "gather": (["gather", str(split), "--out"], folder / "gathered"),
        "join": (["join", str(split), "--out"], folder / "joined"),
        "index": (["index", "--add", wheel, "--add", second], index),
        "mirror": (["mirror", str(both), *mirror], folder / "mirror"),
    }
    # Later runs have more to write, because both go on where an earlier run has ended.
    before = {"index": ["index", "--add", wheel], "mirror": ["mirror", str(only_fat), *mirror]}
    counts = {}
    for name, (words, out) in verbs.items():
        last, first = (
            [each[0], str(out), *each[1:]] if name == "index" else [*each, str(out)]
            for each in (words, before.get(name, words))
        )
        # An index has few changes.
        counts[name] = killed(last, out, max(1, step // 10) if name == "index" else step, first)
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
