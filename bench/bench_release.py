# ruff: noqa: INP001 - a script, which starts programs to measure them
"""Write the wheels of a big release, and keep a big index, each beside its peer.

    python bench/bench_release.py wheels LIBRARY [--plugins N] [--megabytes N]
    python bench/bench_release.py index [--files N]
    python bench/bench_release.py rows [--files N]

`wheels` cuts a real library (say libtorch_cuda.so; a smaller one is taken again and again) into the
libraries of N plugins, and writes their wheels as `archsplit build` does, and by `wheel pack` from
the same trees. `index` takes N small wheels into an index, adds a release of nine more and prunes
the oldest, and has `simple503` write the pages of the same wheels. `rows` inspects wheels of N
members in deep folders, and doubles N five times. Wall and CPU seconds, the peak
memory of the largest process, and the size of what was written.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from program_usage import Run, run

from archsplit.wheels.filename import WheelName, distribution_name
from archsplit.wheels.metadata import CoreMetadata
from archsplit.wheels.writer import WheelDraft, WheelMember, write_wheel, write_wheels

WHEEL_GOALS = "goals: 4 times as fast, not larger, no more than 300 MB of memory"
INDEX_GOALS = "goals: an update takes less than 2 s of CPU for 5,000 wheels, and 5 s for 20,000"
ROWS_GOALS = "goals: twice the members take twice the time; 64,000 less than 10 s"
_EPOCH = 1_700_000_000
_BLOCK = 1 << 22


def row(name: str, took: Run, size: int | None = None) -> str:
    """Return a row of the table."""
    made = "" if size is None else f"{size / 1e6:9.1f}"
    return f"{name:34}{took.wall:8.2f}{took.cpu:8.2f}{took.memory:8.0f}{made}\n"


def plan(
    project: str, version: str, *members: WheelMember, requires: tuple[str, ...] = ()
) -> WheelDraft:
    """Plan a wheel, as short as one can be."""
    name = WheelName(
        project=distribution_name(project), version=version, platforms=("manylinux_2_28_x86_64",)
    )
    metadata = CoreMetadata(
        name=project, version=version, summary="Made to be measured.", requires=requires
    )
    return WheelDraft(name=name, metadata=metadata, generator="bench", members=members)


def plugin(library: Path) -> WheelDraft:
    """Plan the wheel of one plugin."""
    place = f"big_plugins/cuda/{library.stem}/libbig.so"
    return plan(f"big-{library.stem}", "1.0", WheelMember(name=place, content=library, mode=0o755))


def cut(library: Path, folder: Path, count: int, size: int) -> None:
    """Write ``count`` files of ``size`` bytes in all; repeat the library if it is smaller."""
    with library.open("rb") as source:
        for number in range(count):
            with (folder / f"sm{number}.so").open("wb") as part:
                left = size // count
                while left:
                    block = source.read(min(_BLOCK, left))
                    part.write(block)
                    left -= len(block)
                    if not block:
                        source.seek(0)


def write(folder: Path, out: Path) -> None:
    """Write the wheels; runs in a process of its own."""
    write_wheels(out, [plugin(path) for path in sorted(folder.iterdir())], epoch=_EPOCH)


def wheels(library: Path, count: int, size: int) -> None:
    """Write the wheels in both ways."""
    with tempfile.TemporaryDirectory() as name:
        parts, ours, theirs, trees = (Path(name) / each for each in ("in", "a", "b", "trees"))
        for folder in (parts, ours, theirs, trees):
            folder.mkdir()
        cut(library, parts, count, size)
        argv = (sys.executable, __file__, "write", str(parts), str(ours))
        mine, total = run(*argv), Run(wall=0, cpu=0, memory=0)
        for wheel in sorted(ours.iterdir()):
            program = (sys.executable, "-m", "wheel")
            run(*program, "unpack", "--dest", str(trees), str(wheel))
            (tree,) = trees.iterdir()
            total = total.then(run(*program, "pack", "--dest-dir", str(theirs), str(tree)))
            tree.rename(Path(name) / wheel.stem)
        sizes = [sum(each.stat().st_size for each in one.iterdir()) for one in (ours, theirs)]
        sys.stdout.write(
            f"{library.name}, {size / 1e6:.0f} MB, {len(os.sched_getaffinity(0))} cores\n"
        )
        sys.stdout.write(f"{'':34}{'wall s':>8}{'CPU s':>8}{'MB peak':>8}{'MB made':>9}\n")
        sys.stdout.write(row(f"archsplit, {count} wheels", mine, sizes[0]))
        sys.stdout.write(row("wheel pack, one after the other", total, sizes[1]))
        sys.stdout.write(f"{total.wall / mine.wall:.1f} times as fast; {WHEEL_GOALS}\n")


def nightly(folder: Path, number: int) -> None:
    """Write nine small wheels: a core, and the plugins of eight targets."""
    folder.mkdir(parents=True)
    version = f"1.0.dev{number}"
    targets = [f"big-sm{each}" for each in range(8)]
    plans = [plan(target, version, requires=(f"big=={version}",)) for target in targets]
    core = plan("big", version, requires=tuple(f"{target}=={version}" for target in targets))
    write_wheels(folder, [*plans, core], epoch=_EPOCH, threads=1)


def index(count: int) -> None:
    """Keep an index of so many wheels."""
    with tempfile.TemporaryDirectory() as name:
        folder, days = Path(name), count // 9
        for number in range(days + 1):
            nightly(folder / "days" / f"{number:04}", number)
        *old, new = (str(path) for path in sorted((folder / "days").iterdir()))
        root = str(folder / "index")
        os.environ["SOURCE_DATE_EPOCH"] = str(_EPOCH)
        first = run("archsplit", "index", root, "--add", *old)
        os.environ["SOURCE_DATE_EPOCH"] = str(_EPOCH + 86_400)
        size = sum(path.stat().st_size for path in (folder / "index").glob("*/*.whl"))
        limits = ("--prune", f"size={size}", "--grace", "0s")
        update = run("archsplit", "index", root, "--add", new, *limits)
        wheels = folder / "wheels"
        wheels.mkdir()
        for path in (folder / "index").glob("*/*.whl"):
            path.rename(wheels / path.name)
        peer = run("simple503", "-B", "/", str(wheels))
        sys.stdout.write(f"{'':34}{'wall s':>8}{'CPU s':>8}{'MB peak':>8}\n")
        sys.stdout.write(row(f"archsplit index, {9 * days} wheels new", first))
        sys.stdout.write(row("archsplit index, 9 more, 9 gone", update))
        sys.stdout.write(row("simple503, all pages", peer) + f"{INDEX_GOALS}\n")


def rows(count: int) -> None:
    """Inspect wheels of more and more members."""
    sys.stdout.write(f"{'':34}{'wall s':>8}{'CPU s':>8}{'MB peak':>8}\n")
    for number in (count << doubling for doubling in range(6)):
        with tempfile.TemporaryDirectory() as folder:
            members = tuple(
                WheelMember(name=f"big/{'deep/' * 100}{each}.py", content=b"")
                for each in range(number)
            )
            small = replace(plan("big", "1.0"), members=members)
            wheel = write_wheel(Path(folder), small, epoch=_EPOCH)
            sys.stdout.write(row(f"{number} members", run("archsplit", "inspect", str(wheel))))
    sys.stdout.write(f"{ROWS_GOALS}\n")


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    what = parser.add_subparsers(required=True, metavar="WHAT")
    one = what.add_parser("wheels")
    one.add_argument("library", type=Path)
    one.add_argument("--plugins", type=int, default=8, metavar="N")
    one.add_argument("--megabytes", type=int, default=1000, metavar="N")
    one.set_defaults(
        run=lambda given: wheels(given.library, given.plugins, given.megabytes * 1_000_000)
    )
    one = what.add_parser("index")
    one.add_argument("--files", type=int, default=5000, metavar="N")
    one.set_defaults(run=lambda given: index(given.files))
    one = what.add_parser("rows")
    one.add_argument("--files", type=int, default=2000, metavar="N")
    one.set_defaults(run=lambda given: rows(given.files))
    one = what.add_parser("write")
    one.add_argument("folder", type=Path)
    one.add_argument("out", type=Path)
    one.set_defaults(run=lambda given: write(given.folder, given.out))
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
