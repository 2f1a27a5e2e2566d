"""Each verb that writes, killed at random moments over its earlier output.

``python random_kills.py FOLDER --kills N --seed S [--only VERB]`` kills each verb N times and
prints the number of kills. Half of the kills come before a random change to the disk; the others
end all processes of the verb at a random time. Each kill starts from the earlier output. A file of
that output that is missing or half written is an error, and so is a failure of the same command
afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from slim_site_samples import made, snapshot
from slim_wheel_samples import fat_wheel

from archsplit.cli.main import main as archsplit
from index_server import pypiserver
from killed_children import CHANGES, WRITES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TESTS = Path(__file__).parents[1]
LATER, EARLIER = "1600000000", "1700000000"
RERUN = 4
"""Every so many kills, the same command is run to its end."""
TEMPORARY = re.compile(r"\.archsplit-")
"""Names of temporary folders and files; what a killed run leaves of them harms no output."""
USER = ("TWINE_USERNAME", "TWINE_PASSWORD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A verb to kill.

    Attributes:
        words: the command line, which has the place of ``out``.
        out: the folder that it writes to.
        before: makes the earlier output; the command line itself if None.
        is_cache: the output is a cache, which may lose any file.
        settle: run after a kill, before the output is judged.
        is_same: the command writes the same bytes each time.
    """

    words: tuple[str, ...]
    out: Path
    before: Callable[[], object] | None = None
    is_cache: bool = False
    settle: Callable[[], None] = field(default=lambda: None)
    is_same: bool = True


def digests(folder: Path) -> dict[str, str]:
    """Return the digest of each file that is not a temporary one of a killed run."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(map(TEMPORARY.match, path.relative_to(folder).parts))
    }


def start(words: tuple[str, ...], epoch: str, at: int | None = None) -> int:
    """Start a verb in a process group of its own, which dies before change number ``at``."""
    child = os.fork()
    if child:
        with contextlib.suppress(OSError):
            os.setpgid(child, child)
        return child
    os.setpgid(0, 0)
    os.environ["SOURCE_DATE_EPOCH"] = epoch
    log = os.open(os.environ["KILLS_LOG"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    code = 1
    count = 0

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        flags = arguments[2] if event == "open" else 0
        if event in CHANGES or (isinstance(flags, int) and flags & WRITES):
            count += 1
            if at is not None and count > at:
                os.killpg(0, signal.SIGKILL)

    sys.addaudithook(watch)
    try:
        code = archsplit(list(words))
        Path(os.environ["KILLS_LOG"] + ".count").write_text(str(count))
    finally:
        os._exit(code)


def finish(words: tuple[str, ...], epoch: str) -> tuple[float, int]:
    """Run a verb to its end; return its seconds and its changes to the disk."""
    began = time.monotonic()
    status = os.waitstatus_to_exitcode(os.waitpid(start(words, epoch), 0)[1])
    log = Path(os.environ["KILLS_LOG"])
    assert status == 0, (words, status, log.read_text())
    return time.monotonic() - began, int(Path(f"{log}.count").read_text())


def kill(words: tuple[str, ...], seconds: float, changes: int, clock: random.Random) -> bool:
    """Kill a run at a random moment; return False if it had ended before."""
    if clock.random() < 0.5:
        child = start(words, LATER, clock.randrange(max(changes, 1)))
    else:
        child = start(words, LATER)
        time.sleep(clock.uniform(0, 1.1 * seconds))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) < 0


def try_verb(name: str, trial: Trial, kills: int, clock: random.Random) -> int:
    """Kill a verb until there are enough kills; return the number of judged outputs."""
    out, kept = trial.out, trial.out.with_name(f"{trial.out.name}-kept")

    def restore() -> None:
        # A program that the killed verb has started may write on for a moment.
        while out.exists():
            shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(kept, out, symlinks=True)

    if trial.before is None:
        finish(trial.words, EARLIER)
    else:
        trial.before()
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(out, kept, symlinks=True)
    old = digests(kept)
    seconds, changes = finish(trial.words, LATER)
    new = digests(out)
    done = 0
    while done < kills:
        restore()
        if not kill(trial.words, seconds, changes, clock):
            continue
        done += 1
        trial.settle()
        found = digests(out)
        missing = sorted((old.keys() & new.keys()) - found.keys())
        assert trial.is_cache or not missing, (name, done, missing)
        for each in old.keys() & found.keys():
            right = {old[each], new.get(each, old[each])}
            half = found[each] not in right and trial.is_same
            assert not half, (name, done, each)
        if done % RERUN == 0 or done == kills:
            finish(trial.words, LATER)
            again = digests(out)
            names = sorted(again.keys() ^ new.keys())
            assert trial.is_cache or not names, (name, done, names)
            assert not trial.is_same or again == new, (name, done)
    return done


def undo(site: Path, before: object) -> None:
    """Undo what a killed run has slimmed; the environment is as it was."""
    finish(("slim", "--site-packages", str(site), "--undo"), LATER)
    assert snapshot(site) == before


def slims(folder: Path, wheel: str, library: str) -> Iterator[tuple[str, Trial]]:
    for name, source in (("slim-wheel", wheel), ("slim-file", library)):
        out = folder / name
        yield name, Trial(words=("slim", source, "--device", "9.0", "--out", str(out)), out=out)
    environment = made(folder / "environment")
    copies = {last: environment.copy(folder / last).site for last in ("--undo", "--commit")}
    device = ("--device", "9.0")
    site = environment.site
    words = ("slim", "--site-packages", str(site))
    back = partial(undo, site, snapshot(site))
    yield "slim-site", Trial(words=(*words, *device), out=site, before=nothing, settle=back)
    for last, site in copies.items():
        words = ("slim", "--site-packages", str(site))
        slimmed = partial(finish, (*words, *device), EARLIER)
        yield f"slim{last}", Trial(words=(*words, last), out=site, before=slimmed, is_same=False)


def nothing() -> None:
    """Leave the output as it is."""


def releases(folder: Path, wheel: str) -> Iterator[tuple[str, Trial]]:
    split, out = folder / "split", folder / "release"
    yield "split", Trial(words=("split", wheel, "--out", str(split)), out=split)
    finish(("split", wheel, "--release", "--out", str(out)), EARLIER)
    for name in ("gather", "join"):
        place = folder / name
        yield name, Trial(words=(name, str(out), "--out", str(place)), out=place)
    index = folder / "index"
    more = [str(path) for path in sorted(out.glob("*.whl"), reverse=True)]
    added = partial(finish, ("index", str(index), "--add", *more[:2]), EARLIER)
    yield (
        "index",
        Trial(
            words=("index", str(index), "--add", *more),
            out=index,
            before=added,
            is_same=False,
        ),
    )
    server = folder / "server" / "packages"
    server.mkdir(parents=True)
    with pypiserver(server) as port:
        address = f"http://127.0.0.1:{port}/"
        words = ("publish", str(out), "--yes", "--repository-url", address)
        options = ("--index-url", f"{address}simple/")
        os.environ |= dict.fromkeys(USER, "a")

        def first_plugin() -> None:
            shutil.copy(next(out.glob("fat_*.whl")), server)

        yield "publish", Trial(words=(*words, *options), out=server, before=first_plugin)


def mirrors(folder: Path) -> Iterator[tuple[str, Trial]]:
    wheels = folder / "mirrored"
    wheels.mkdir()
    fat_wheel(wheels)
    fat_wheel(wheels, name="second-1-py3-none-manylinux_2_17_x86_64.whl")
    requirements, out = folder / "requirements.txt", folder / "mirror"
    words = ("mirror", str(requirements), "--out", str(out), "--device", "9.0")
    text = f"--no-index\n--find-links {wheels}\nfat\n"

    def earlier() -> None:
        requirements.write_text(text)
        finish(words, EARLIER)
        requirements.write_text(f"{text}second\n")

    yield "mirror", Trial(words=words, out=out, before=earlier, is_same=False)


def builds(folder: Path) -> Iterator[tuple[str, Trial]]:
    recipe, out = folder / "tinyvec", folder / "built"
    shutil.copytree(TESTS / "tinyvec", recipe)
    yield "build", Trial(words=("build", str(recipe), "--quiet", "--out", str(out)), out=out)
    source, objects = folder / "source", folder / "objects"
    source.mkdir()
    objects.mkdir()
    file, output = source / "scale.cu", objects / "scale.o"
    text = "__global__ void scale(float *x) {{ x[0] *= {}; }}\n"
    file.write_text(text.format(1))
    arch = ("-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90")
    words = ("nvcc", "--", "-c", str(file), "-o", str(output), *arch)

    def compiled() -> None:
        file.write_text(text.format(2))
        finish(words, EARLIER)
        file.write_text(text.format(3))

    # nvcc itself writes over its output.
    yield "nvcc", Trial(words=words, out=objects, before=compiled, is_same=False)
    cache = Path(os.environ["ARCHSPLIT_CACHE_DIR"])
    place = folder / "moved"
    place.mkdir()
    tar = place / "cache.tar"
    yield "cache-export", Trial(words=("cache", "export", str(tar)), out=place, is_same=False)
    finish(("cache", "export", str(tar)), EARLIER)

    def sound() -> None:
        finish(("cache", "verify"), LATER)
        finish(words, LATER)

    for name, more in (("import", (str(tar),)), ("clear", ()), ("trim", ())):
        yield (
            f"cache-{name}",
            Trial(
                words=("cache", name, *more),
                out=cache,
                before=partial(finish, words, EARLIER),
                is_cache=True,
                settle=sound,
                is_same=False,
            ),
        )


def trials(folder: Path) -> Iterator[tuple[str, Trial]]:
    place = folder / "in"
    place.mkdir(parents=True)
    wheel = str(fat_wheel(place))
    yield from slims(folder, wheel, str(place / "library/libsample.so"))
    yield from releases(folder, wheel)
    yield from mirrors(folder)
    yield from builds(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    own = {"KILLS_LOG": folder / "log", "ARCHSPLIT_CACHE_DIR": folder / "cache"}
    os.environ |= {name: str(path) for name, path in own.items()}
    counts = {}
    for name, trial in trials(folder):
        if arguments.only in name:
            clock = random.Random(f"{arguments.seed} {name}")
            counts[name] = try_verb(name, trial, arguments.kills, clock)
            sys.stderr.write(f"{name}: {counts[name]} kills\n")
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()
